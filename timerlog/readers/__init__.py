"""Other processes look at a data directory: read-only, without the lock."""
