"""The agent in the driver: carries out commands and records what happens."""
