"""The demonstration: real departures from New York in 2013, on a real broker, in compressed time."""
