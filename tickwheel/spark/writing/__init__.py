"""Rows become messages: what a row must be, and the sink that sends those that are good. Bulk scheduling checks rows
the same way.

``reasons`` (why a row cannot be a message), ``moments`` and ``headers`` (single columns), ``columns`` (a checked
batch), ``rows`` (sending it), ``sink`` (what Spark asks for).
"""
