"""Consuming: receive, stream, settle; and what was given up."""
