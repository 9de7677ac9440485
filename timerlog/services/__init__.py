"""The five services, each with its work on one batch."""
