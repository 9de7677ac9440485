"""The Tickwheel daemon: five services on trio, delivery, and a server over TCP and Unix sockets."""
