"""What is answered to each call."""
