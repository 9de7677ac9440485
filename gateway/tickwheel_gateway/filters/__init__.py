"""Which messages a subscription wants: by tags, or by SQL over properties."""
