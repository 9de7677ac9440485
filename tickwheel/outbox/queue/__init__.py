"""A first-in first-out queue in the user's database.

From the bottom up: ``table`` (making and checking it), ``sql`` (putting, claiming, deleting), ``holding`` (what one
claim holds), ``messages`` (batches and messages), ``queue`` (what users hold), ``consumer`` (waits and claims).
"""
