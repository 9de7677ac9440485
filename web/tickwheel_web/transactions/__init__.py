"""What happens together or not at all, and messages that wait for a decision."""
