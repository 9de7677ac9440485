"""What lies above the broker is made here from its parts: its requests, its connections, and what watches it.

Beside `broker.py` this is the one module that knows all parts; each of those made here is given what it uses.
"""

from __future__ import annotations

from tickwheel_broker.broker import Broker
from tickwheel_broker.connections.connection import Parts
from tickwheel_broker.monitoring.vitals import Vitals
from tickwheel_broker.monitoring.watched import Watched
from tickwheel_broker.requests.answers import Answers
from tickwheel_broker.requests.bulk import BulkRequests
from tickwheel_broker.requests.changes import ChangeRequests
from tickwheel_broker.requests.figures import FigureRequests
from tickwheel_broker.requests.groups import GroupRequests
from tickwheel_broker.requests.letters import LetterRequests
from tickwheel_broker.requests.messages import MessageRequests
from tickwheel_broker.requests.prepared import PreparedRequests
from tickwheel_broker.requests.remembered import Remembered
from tickwheel_broker.requests.schedules import ScheduleRequests
from tickwheel_broker.requests.space import SpaceRequests
from tickwheel_broker.requests.subscriptions import SubscriptionRequests
from tickwheel_broker.requests.table import Requests, Table, table_of
from tickwheel_broker.requests.topics import TopicRequests


def requests_of(broker: Broker) -> tuple[Requests, Answers]:
    """The handlers of all requests, and how their answers leave. Once for a broker: a repeated request is known by
    what they share."""
    remembered = Remembered(broker.store.tables, broker.store.log, broker.store.writer, broker.commit)
    answers = Answers(broker.commit, remembered)
    return Requests(_table(broker, answers), remembered), answers


def _table(broker: Broker, answers: Answers) -> Table:
    store, clock, settings, publish = broker.store, broker.clock, broker.settings, broker.publish
    delivery, subscriptions, schedules = broker.delivery, broker.subscriptions, broker.schedules
    frame_bytes = settings.max_frame_bytes
    return table_of(
        topics=TopicRequests(
            store.topics, store.holders, store.look, store.tables, clock, settings, delivery,
            subscriptions, schedules, broker.retention, publish, answers,
        ),
        subscriptions=SubscriptionRequests(
            store.topics, store.groups, store.look, store.tables, store.log, clock, settings,
            broker.commit, delivery, subscriptions, answers,
        ),
        changes=ChangeRequests(
            store.change, store.settle, store.select, store.transactions, store.commit, store.topics,
            store.tables, clock, publish, answers,
        ),
        messages=MessageRequests(store.topics, store.select, clock, answers, max_frame_bytes=frame_bytes),
        letters=LetterRequests(store.replay_dead, store.select, store.topics, clock, publish, answers),
        prepared=PreparedRequests(
            store.prepared, store.topics, store.produce, store.commit, clock, settings, publish, answers
        ),
        groups=GroupRequests(
            store.groups, store.topics, store.tables, clock, broker.readers, delivery, publish, answers,
            max_frame_bytes=frame_bytes,
        ),
        schedules=ScheduleRequests(
            store.topics, store.tables, store.log, store.settings, clock, settings, schedules, answers
        ),
        figures=FigureRequests(
            store.look, store.tables, clock, broker.counters, delivery, broker.lifetime, broker.forecasts,
            broker.queries, answers,
        ),
        space=SpaceRequests(store.change, store.log, settings.data_dir, broker.purging, publish, answers),
        bulk=BulkRequests(store.bulk, store.commit, store.tables, clock, settings, broker.bulk_jobs, answers),
    )  # fmt: skip


def connection_parts(broker: Broker) -> Parts:
    """What all connections of a broker work with; made once."""
    requests, answers = requests_of(broker)
    return Parts(
        settings=broker.settings,
        produce=broker.store.produce,
        deliver=broker.store.deliver,
        log=broker.store.log,
        tables=broker.store.tables,
        clock=broker.clock,
        lifetime=broker.lifetime,
        commit=broker.commit,
        services=broker.services,
        delivery=broker.delivery,
        publish=broker.publish,
        subscriptions=broker.subscriptions,
        schedules=broker.schedules,
        counters=broker.counters,
        access=broker.access,
        receive_room=broker.receive_room,
        requests=requests,
        answers=answers,
    )


def watched_parts(broker: Broker) -> Watched:
    """The parts of a broker that are watched, and the vitals that say how they are."""
    return Watched(
        settings=broker.settings,
        engine=broker.store,
        clock=broker.clock,
        lifetime=broker.lifetime,
        counters=broker.counters,
        commit=broker.commit,
        services=broker.services,
        delivery=broker.delivery,
        forecasts=broker.forecasts,
        housekeeping=broker.housekeeping,
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
