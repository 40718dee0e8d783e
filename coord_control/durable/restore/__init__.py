"""Restore a job from a checkpoint: check first, then build the new lineages, then commit."""
