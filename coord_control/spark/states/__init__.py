"""Reads the states in checkpoints and savepoints, for people."""
