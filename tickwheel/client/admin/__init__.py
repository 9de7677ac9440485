"""Topics, groups, schedules, changes, transactions, queries: what a client asks besides sending and receiving."""
