"""The MessagePack bodies of requests and answers."""
