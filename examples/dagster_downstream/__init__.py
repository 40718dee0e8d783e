"""Declarative automation downstream of a streaming job: an asset that is rebuilt after each new savepoint."""
