"""What a job and a control database say of themselves, for Prometheus: a table of names, collectors, a server."""
