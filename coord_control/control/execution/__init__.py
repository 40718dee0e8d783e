"""What commands are carried out with: the driver, the outcomes, and what all kinds of commands have in common."""
