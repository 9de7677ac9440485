"""``tickwheel flight``: the tables of a broker's data directory by Arrow Flight, for readers on other machines.

A process of its own beside the broker: it reads the same files, and asks the broker who may read what.
"""
