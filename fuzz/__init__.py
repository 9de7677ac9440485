"""Fuzzing of the C code: see run.py."""
