"""The agent in the driver: carries out commands and writes down what happens."""
