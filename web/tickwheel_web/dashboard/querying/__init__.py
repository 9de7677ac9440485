"""Asking with SQL."""
