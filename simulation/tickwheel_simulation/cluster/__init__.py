"""Several machines that share one log."""
