"""The pages about figures: what is due, and how punctual the broker is."""
