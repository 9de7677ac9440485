"""What is kept in the log by name for others to use."""
