"""One module a command, or a small family of commands. They are imported only when they are called."""
