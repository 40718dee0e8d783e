"""``coordctl``, the command line: one module per noun, and nothing of Spark, so that every command starts at once."""
