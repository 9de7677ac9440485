"""One log on several machines: which of the records that carry it count, and a replica that follows them."""
