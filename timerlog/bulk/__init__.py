"""Bulk scheduling: jobs that arrive as whole segments."""
