"""What a Dagster run does: send one request to a job, and wait for its result."""
