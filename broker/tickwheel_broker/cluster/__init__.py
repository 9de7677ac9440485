"""Several machines for one log: who owns it, how it is shipped, and how the others follow."""
