"""Streaming jobs in Dagster: assets, checks, schedules, sensors and jobs over the control database."""
