"""The engine in Python, on `h2`: it is there wherever Python is."""
