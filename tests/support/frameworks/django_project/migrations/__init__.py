"""The tables of the project."""
