"""Receiving, from the bottom up: ``acks``, ``message``, ``holding`` (leases), ``credit``, ``subscription``."""
