"""Making a cluster of what is there already."""
