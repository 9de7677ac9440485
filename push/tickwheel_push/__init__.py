"""`tickwheel push`: messages become requests to URLs at their time."""
