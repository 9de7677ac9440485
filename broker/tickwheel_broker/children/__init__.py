"""Processes beside the broker that it starts itself."""
