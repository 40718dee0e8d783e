"""When checkpoints and savepoints start and end: requests, tickets, the clock, statistics of those that ended."""
