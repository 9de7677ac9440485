"""Tasks of Dramatiq with Tickwheel as the broker, and with Redis beside it."""
