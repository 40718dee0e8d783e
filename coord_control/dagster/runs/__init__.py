"""What a run of Dagster does: ask a job for something, once, and wait for it."""
