"""The checkpoints and savepoints of a running job."""
