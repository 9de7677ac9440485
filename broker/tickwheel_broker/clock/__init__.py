"""The time, and alarms that wait for it."""
