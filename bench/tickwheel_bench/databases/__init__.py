"""Messages inside SQL databases, against the loops that people write."""
