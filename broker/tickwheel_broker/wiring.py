"""What lies above the broker is made here from its parts: its requests, its connections, and what watches it.

Beside `broker.py` and the table of requests this is the one module that knows all parts; each of those made here is
given what it uses.
"""

from __future__ import annotations

from functools import partial

from tickwheel_broker.broker import Broker
from tickwheel_broker.connections.connection import Parts
from tickwheel_broker.monitoring.figures import Figures
from tickwheel_broker.monitoring.vitals import Vitals
from tickwheel_broker.monitoring.watched import Watched
from tickwheel_broker.requests.answers import Answers
from tickwheel_broker.requests.operations import Clients
from tickwheel_broker.requests.remembered import Remembered
from tickwheel_broker.requests.table import Requests, table_of
from tickwheel_broker.security.rights import Rights


def requests_of(broker: Broker, clients: Clients) -> Requests:
    """Once for a broker: a repeated request is known by what all connections share."""
    remembered = Remembered(broker.store.tables, broker.store.log, broker.store.writer, broker.commit)
    return Requests(table_of(broker, figures_of(broker), clients), Answers(broker.commit, remembered))


def figures_of(broker: Broker) -> Figures:
    """What the broker can say of itself in numbers."""
    return Figures(
        broker.settings,
        broker.store,
        broker.clock,
        broker.counters,
        broker.commit,
        broker.services,
        broker.delivery,
        broker.housekeeping,
        broker.schedules,
        broker.endpoints,
    )


def connection_parts(broker: Broker) -> Parts:
    """What all connections of a broker work with; made once."""
    clients = Clients()
    return Parts(
        settings=broker.settings,
        produce=broker.store.produce,
        deliver=broker.store.deliver,
        log=broker.store.log,
        timeline=broker.store.timeline,
        clock=broker.clock,
        lifetime=broker.lifetime,
        commit=broker.commit,
        services=broker.services,
        publish=broker.publish,
        subscriptions=broker.subscriptions,
        fetches=broker.fetches,
        probing=broker.probing,
        counters=broker.counters,
        access=broker.access,
        rights_of=partial(Rights, broker.store.tables, broker.schedules.topic_of, broker.endpoints.find),
        receive_room=broker.receive_room,
        turns=broker.turns,
        requests=requests_of(broker, clients),
        clients=clients,
    )


def watched_parts(broker: Broker) -> Watched:
    """The parts of a broker that are watched, and the vitals that say how they are."""
    return Watched(
        settings=broker.settings,
        engine=broker.store,
        clock=broker.clock,
        lifetime=broker.lifetime,
        counters=broker.counters,
        figures=figures_of(broker),
        services=broker.services,
        forecasts=broker.forecasts,
        vitals=Vitals(
            broker.store.enqueue_get,
            broker.store.wheel,
            broker.store.log,
            broker.clock,
            broker.services,
            broker.commit,
            broker.counters,
            broker.lifetime,
            broker.housekeeping,
        ),
    )
