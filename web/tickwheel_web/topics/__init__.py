"""Topics and groups."""
