"""What is large: taken in pieces, and beside the event loop."""
