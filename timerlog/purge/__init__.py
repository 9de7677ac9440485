"""Giving disk space back, by whole segments and by pages."""
