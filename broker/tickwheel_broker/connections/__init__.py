"""The connections of clients, from accept to close."""
