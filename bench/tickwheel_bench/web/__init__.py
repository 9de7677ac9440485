"""The HTTP API under load."""
