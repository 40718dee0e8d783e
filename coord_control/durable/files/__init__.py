"""The job's storage: a handful of verbs, on any file system."""
