"""The wire: its schema, names, handles, and a message as RocketMQ has it and as Tickwheel has it."""
