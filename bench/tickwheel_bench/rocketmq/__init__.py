"""RocketMQ's clients and RocketMQ itself, beside the gateway."""
