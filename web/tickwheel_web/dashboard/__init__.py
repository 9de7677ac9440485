"""The dashboard: pages for people, beside the API, with the rights of the token that somebody has logged in with.

Everything is made on the server. ``table.py`` has all pages; ``web/README.md`` says how to add one.
"""
