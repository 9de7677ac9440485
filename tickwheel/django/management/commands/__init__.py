"""What the room above says: each module is a command."""
