"""RocketMQ beside Tickwheel: the real one, in processes of our own."""
