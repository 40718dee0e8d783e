"""The client: lets another process control and observe jobs through the control database."""
