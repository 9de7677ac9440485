"""The client: ``tickwheel.Client`` and what it is made of."""
