"""A daemon that owns the log for a time, and follows it otherwise."""
