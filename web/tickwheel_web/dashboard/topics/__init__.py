"""The pages of topics and groups."""
