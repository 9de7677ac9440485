"""What goes on between the calls of a client: receipts that are renewed, dead letters, check-backs."""
