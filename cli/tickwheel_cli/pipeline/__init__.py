"""`tickwheel pipeline`: bulk work on the messages with Spark, a module for each command."""
