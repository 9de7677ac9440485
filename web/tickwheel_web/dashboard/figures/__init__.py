"""The broker's figures over time, as far as this process has seen them."""
