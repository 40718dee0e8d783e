"""Complete jobs to run and to learn from."""
