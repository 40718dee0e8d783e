"""The control plane: a client sends requests, an agent in the driver executes them, and a database connects the two."""
