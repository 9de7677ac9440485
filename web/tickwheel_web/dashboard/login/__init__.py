"""Coming in with a token, and leaving."""
