"""Live values: values of a job that its running queries use in their expressions."""
