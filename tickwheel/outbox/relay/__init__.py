"""The relay from a message table to the broker.

From the bottom up: ``rows`` (a row as a message), ``ledger`` and ``markers`` (how far both sides are), ``store`` (the
SQL of a batch), ``aside`` (rows that the broker refuses), ``batch`` (one step), ``relay`` (what users hold).
"""
