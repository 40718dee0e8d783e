"""Checkpoints and savepoints on the storage: make, share, hold, find, verify and remove them."""
