"""SQL over the messages."""
