"""A simulator: the real broker and the real client in one process, with simulated time, disk and network.

One number, the seed, decides everything that happens in a run: what producers send and consumers answer, how long bytes
travel, when connections break, when the disk is full, fails or loses power, and in which order tasks run. So a run that
finds a defect can be repeated exactly. An oracle, which knows nothing of the engine, checks what it sees at every step.

    determinism   everything random comes from the seed
    clock         the wall clock, which may jump
    network       streams in memory that are slow, short and cut
    disk          what was synced apart from what was only written
    profile       what a seed makes likely
    oracle        what must hold
    machine       a broker that is killed, loses power, is started again
    world         what all tasks share
    clients       producers, consumers, and people who change their minds
    restores      a run of its own: a backup is restored while clients live on
    rocketmq      clients of RocketMQ, and gateways
    run           one seed from beginning to end
"""
