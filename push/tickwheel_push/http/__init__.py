"""One request of HTTP: what it says, where it may go, and what was answered."""
