"""The demonstration: real departures from New York in 2013, scheduled on a real broker, in compressed time."""
