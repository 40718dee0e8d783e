"""The folder of a job: claims of generations, lineages, and the commit of a restore."""
