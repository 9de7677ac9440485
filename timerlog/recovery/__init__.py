"""From files to a running state: where the log ends, and what the tables lack."""
