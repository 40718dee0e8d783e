"""The log of begin and ack records of a query's epochs."""
