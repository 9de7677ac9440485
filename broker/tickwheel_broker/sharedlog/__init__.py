"""A log that several nodes share: who owns it, what the owner appends, how the others follow."""
