"""Decide, make room, log, apply: one module a verb."""
