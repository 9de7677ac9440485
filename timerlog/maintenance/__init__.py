"""What an operator asks of a whole directory: backup, inspect, repair."""
