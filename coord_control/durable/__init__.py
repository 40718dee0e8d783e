"""Everything of a job that outlives its driver: files, epochs, lineages. Nothing here knows pyspark."""
