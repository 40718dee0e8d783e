"""What Dagster is given: assets, checks, schedules, sensors, jobs and the component."""
