"""Who calls, what they have said of themselves, and whether they are still there."""
