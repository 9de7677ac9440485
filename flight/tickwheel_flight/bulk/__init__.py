"""Bulk jobs by Arrow Flight: files that come by DoPut, and what their driver asks."""
