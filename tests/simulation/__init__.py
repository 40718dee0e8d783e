"""A deterministic simulation of a whole job: the real core and the real epoch store, everything around them simulated.

Spark, the network, the storage, user coordinators and several drivers are played by one thread with one random number
generator: the same seed gives the same history. See :mod:`tests.simulation.run` for the command.
"""
