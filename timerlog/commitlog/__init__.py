"""The one truth: append-only segments of records."""
