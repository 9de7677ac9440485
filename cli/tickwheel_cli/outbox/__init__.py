"""`tickwheel outbox`: messages inside a SQL database of the user's, a module for each command."""
