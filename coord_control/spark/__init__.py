"""The Spark binding: everything of a job that touches sockets, threads, files or pyspark."""
