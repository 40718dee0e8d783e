"""The speed that is promised, measured: ``python -m benchmarks.NAME`` for one, ``python -m benchmarks`` for all.

Each prints one JSON document on stdout and, as the last line on stderr, whether its goals are met. See README.md.
"""
