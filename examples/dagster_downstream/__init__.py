"""Declarative automation behind a streaming job: an asset that is made anew whenever there is a new savepoint."""
