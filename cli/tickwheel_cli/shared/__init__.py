"""What the commands share: options, output, sessions, failures."""
