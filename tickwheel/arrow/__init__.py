"""The tables ``messages`` and ``events`` as Arrow record batches."""
