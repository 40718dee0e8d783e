"""What is done with a job that does not run: savepoints, restores, undoing one, dropping mailboxes."""
