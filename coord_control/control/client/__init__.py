"""What another process can ask of a job and see of it, through the control database."""
