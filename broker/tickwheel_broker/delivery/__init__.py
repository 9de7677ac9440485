"""From groups to subscribers: who takes messages, whose turn it is, how fast."""
