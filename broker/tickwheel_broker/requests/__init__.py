"""The requests of clients, one handler each."""
