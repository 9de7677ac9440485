"""Commands that run a process beside the broker: HTTP, push, RocketMQ, Arrow Flight."""
