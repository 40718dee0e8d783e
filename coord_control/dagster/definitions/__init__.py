"""Dagster definitions: assets, checks, schedules, sensors, jobs and the component."""
