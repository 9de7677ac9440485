"""The transport: what Kombu asks of a broker, answered by one of Tickwheel.

``transport`` (what Kombu makes), ``connection`` (the client, and what came), ``channel`` (AMQP's verbs), ``topology``
(exchanges, queues and bindings as topics and groups), ``feed`` (a subscription), ``leases`` (their renewal), ``hub``
(Kombu's event loop), ``sending``, ``envelope`` (a message as bytes), ``options``.
"""
