"""A gateway for clients of RocketMQ 5, which are ordinary clients of the broker on its other side."""
