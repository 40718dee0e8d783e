"""Epochs for events that wait on a silent stream: a source that has an offset when something waits."""
