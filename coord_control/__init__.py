"""Checkpoints, savepoints and exactly-once control events for long-running PySpark Structured Streaming jobs."""
