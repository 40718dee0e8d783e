"""The main job: a year of flights through a coordinated streaming job. ``python -m examples.flights --help``."""
