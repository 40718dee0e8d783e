"""Benchmarks of the promised speed: ``python -m benchmarks.NAME`` for one, ``python -m benchmarks`` for all.

Each prints a JSON document on stdout and, as the last line on stderr, whether its goals are met. See README.md.
"""
