"""The pages for who runs the broker: who is connected, and who did what."""
