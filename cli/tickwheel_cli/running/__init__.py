"""Commands that run and keep a broker."""
