"""Throughput, lateness, and clients that misbehave."""
