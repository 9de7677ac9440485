"""HTTP for the broker: an ordinary client of it that speaks JSON. ``tickwheel.web`` is its public face."""
