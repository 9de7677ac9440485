"""What runs tasks, from the bottom up: ``execution`` (one message), ``workshop`` (all queues of a process, until it
is told to stop) and ``supervisor`` (several processes)."""
