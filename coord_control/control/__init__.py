"""The control plane: a client that asks, an agent in the driver that does, and a database between the two."""
