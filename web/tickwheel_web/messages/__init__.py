"""Messages: send, look at, change."""
