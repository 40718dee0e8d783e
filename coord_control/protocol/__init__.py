"""The rules of docs/protocol.md as pure decisions: no I/O, no clock, no threads, no randomness."""
