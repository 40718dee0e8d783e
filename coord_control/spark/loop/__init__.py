"""The threads of the driver around the protocol core."""
