"""Clients of RocketMQ and the gateway that they talk to, in the simulated world.

The gateway is the real one (`tickwheel_gateway.server.Gateway`), the clients are written after the official ones and
speak HTTP/2. Between them is a second network that fails, and the gateway reaches the broker through the first one.

    profile    topics, groups, and what a seed makes likely
    channel    a connection of a client, and the calls on it
    process    a gateway that is killed, stopped and started again
    promises   what must hold of what clients are answered
    client     what all clients do: settings, heartbeats, calls
    producers  messages, times, message groups, transactions, recalls
    consumers  push consumers, orderly ones, simple ones, and those of dead letters
    site       all of it in one world
"""
