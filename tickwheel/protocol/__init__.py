"""The wire protocol as a sans-io core: no sockets, no clock, no threads. Shared by the client and the broker.

``frames`` cuts a byte stream into checked frames, ``messages`` holds the columnar codecs, ``bodies`` the
MessagePack bodies, ``machine`` the two ends of a connection, ``errors`` the exception tree and ``limits`` the
numbers that both ends agree on. The specification is ``docs/protocol.md``.
"""
