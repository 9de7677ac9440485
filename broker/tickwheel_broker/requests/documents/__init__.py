"""Requests about what is kept in the log by name."""
