"""The job: what users touch, and its wiring."""
