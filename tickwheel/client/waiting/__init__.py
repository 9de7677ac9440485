"""How the client waits: ``waits`` (in an event loop, or in threads), ``budget`` (for room), ``backoff`` (before it
tries again)."""
