"""The `tickwheel` command line: thin click commands over the SDK; what they decide is in pure modules."""
