"""What the pipeline does in a second."""
