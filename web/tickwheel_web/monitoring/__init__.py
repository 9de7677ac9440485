"""What the broker holds and does."""
