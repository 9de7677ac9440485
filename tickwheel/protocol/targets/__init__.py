"""What `tickwheel push` calls: URLs, headers, and the secrets that sign requests."""
