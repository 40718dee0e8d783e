"""Starting programs, and replacing the program of a running job."""
