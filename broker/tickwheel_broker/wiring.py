"""What lies above the broker is made here from its parts: its requests, its connections, and what watches it.

Beside `broker.py` this is the one module that knows all parts. Each part that is made here is given what it uses.
"""

from __future__ import annotations

from functools import partial

from tickwheel_broker.broker import Broker
from tickwheel_broker.connections.connection import Parts
from tickwheel_broker.monitoring.figures import Figures
from tickwheel_broker.monitoring.vitals import DiskSight, Vitals
from tickwheel_broker.monitoring.watched import Watched
from tickwheel_broker.requests.answers import Answers
from tickwheel_broker.requests.bulk import BulkRequests
from tickwheel_broker.requests.changes import ChangeRequests
from tickwheel_broker.requests.documents.endpoints import EndpointRequests
from tickwheel_broker.requests.documents.schedules import ScheduleRequests
from tickwheel_broker.requests.figures import FigureRequests
from tickwheel_broker.requests.groups import GroupRequests
from tickwheel_broker.requests.letters import LetterRequests
from tickwheel_broker.requests.messages import MessageRequests
from tickwheel_broker.requests.operations import Clients, OperationRequests
from tickwheel_broker.requests.prepared import PreparedRequests
from tickwheel_broker.requests.remembered import Remembered
from tickwheel_broker.requests.space import SpaceRequests
from tickwheel_broker.requests.subscriptions import FetchRequests, SubscriptionRequests
from tickwheel_broker.requests.table import Handlers, Requests, table_of
from tickwheel_broker.requests.topics import TopicRequests
from tickwheel_broker.security.rights import Rights


def requests_of(broker: Broker, clients: Clients) -> Requests:
    """Once for a broker: a repeated request is known by what all connections share."""
    store = broker.store
    remembered = Remembered(
        tables=store.tables, log=store.log, writer=store.writer, commit=broker.commit, rest=broker.rest
    )
    answers = Answers(broker.commit, remembered)
    figures = figures_of(broker)
    handlers = Handlers(
        topics=_topics(broker),
        subscriptions=_subscriptions(broker),
        fetches=_fetches(broker),
        changes=_changes(broker),
        messages=_messages(broker),
        letters=_letters(broker),
        prepared=_prepared(broker),
        groups=_groups(broker),
        schedules=_schedules(broker),
        endpoints=_endpoints(broker),
        figures=_figures(broker, figures),
        space=_space(broker),
        operations=_operations(broker, clients),
        bulk=_bulk(broker),
    )
    return Requests(table_of(handlers), answers, broker.publish)


def figures_of(broker: Broker) -> Figures:
    """What the broker can say of itself in numbers."""
    return Figures(
        settings=broker.settings,
        engine=broker.store,
        clock=broker.clock,
        counters=broker.counters,
        commit=broker.commit,
        services=broker.services,
        delivery=broker.delivery,
        housekeeping=broker.housekeeping,
        schedules=broker.schedules,
        endpoints=broker.endpoints,
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
            enqueue_get=broker.store.enqueue_get,
            wheel=broker.store.wheel,
            log=broker.store.log,
            clock=broker.clock,
            services=broker.services,
            commit=broker.commit,
            counters=broker.counters,
            lifetime=broker.lifetime,
            housekeeping=broker.housekeeping,
        ),
    )


def _topics(broker: Broker) -> TopicRequests:
    return TopicRequests(
        topics=broker.store.topics,
        holders=broker.store.holders,
        look=broker.store.look,
        tables=broker.store.tables,
        clock=broker.clock,
        settings=broker.settings,
        delivery=broker.delivery,
        subscriptions=broker.subscriptions,
        schedules=broker.schedules,
        endpoints=broker.endpoints,
        retention=broker.retention,
    )


def _subscriptions(broker: Broker) -> SubscriptionRequests:
    return SubscriptionRequests(
        topics=broker.store.topics,
        groups=broker.store.groups,
        look=broker.store.look,
        tables=broker.store.tables,
        log=broker.store.log,
        clock=broker.clock,
        settings=broker.settings,
        commit=broker.commit,
        delivery=broker.delivery,
        subscriptions=broker.subscriptions,
    )


def _fetches(broker: Broker) -> FetchRequests:
    return FetchRequests(
        topics=broker.store.topics,
        groups=broker.store.groups,
        clock=broker.clock,
        settings=broker.settings,
        commit=broker.commit,
        lifetime=broker.lifetime,
        subscriptions=broker.subscriptions,
        fetches=broker.fetches,
    )


def _changes(broker: Broker) -> ChangeRequests:
    return ChangeRequests(
        change=broker.store.change,
        settle=broker.store.settle,
        select=broker.store.select,
        transactions=broker.store.transactions,
        commit=broker.store.commit,
        topics=broker.store.topics,
        tables=broker.store.tables,
        clock=broker.clock,
    )


def _messages(broker: Broker) -> MessageRequests:
    return MessageRequests(
        topics=broker.store.topics,
        select=broker.store.select,
        clock=broker.clock,
        settings=broker.settings,
        queries=broker.queries,
        turns=broker.turns,
    )


def _letters(broker: Broker) -> LetterRequests:
    return LetterRequests(
        replay_dead=broker.store.replay_dead,
        select=broker.store.select,
        topics=broker.store.topics,
        clock=broker.clock,
    )


def _prepared(broker: Broker) -> PreparedRequests:
    return PreparedRequests(
        prepared=broker.store.prepared,
        topics=broker.store.topics,
        select=broker.store.select,
        produce=broker.store.produce,
        commit=broker.store.commit,
        clock=broker.clock,
        settings=broker.settings,
    )


def _groups(broker: Broker) -> GroupRequests:
    return GroupRequests(
        groups=broker.store.groups,
        topics=broker.store.topics,
        tables=broker.store.tables,
        clock=broker.clock,
        readers=broker.readers,
        endpoints=broker.endpoints,
        delivery=broker.delivery,
        settings=broker.settings,
    )


def _schedules(broker: Broker) -> ScheduleRequests:
    return ScheduleRequests(
        topics=broker.store.topics,
        tables=broker.store.tables,
        log=broker.store.log,
        defaults=broker.store.settings,
        clock=broker.clock,
        settings=broker.settings,
        schedules=broker.schedules,
    )


def _endpoints(broker: Broker) -> EndpointRequests:
    return EndpointRequests(
        topics=broker.store.topics,
        groups=broker.store.groups,
        produce=broker.store.produce,
        tables=broker.store.tables,
        clock=broker.clock,
        settings=broker.settings,
        endpoints=broker.endpoints,
        queries=broker.queries,
    )


def _figures(broker: Broker, figures: Figures) -> FigureRequests:
    return FigureRequests(
        look=broker.store.look,
        tables=broker.store.tables,
        clock=broker.clock,
        settings=broker.settings,
        counters=broker.counters,
        delivery=broker.delivery,
        lifetime=broker.lifetime,
        forecasts=broker.forecasts,
        queries=broker.queries,
        figures=figures,
        disk=DiskSight(broker.settings.data_dir),
        endpoints=broker.endpoints,
    )


def _space(broker: Broker) -> SpaceRequests:
    return SpaceRequests(
        change=broker.store.change, log=broker.store.log, settings=broker.settings, purging=broker.purging
    )


def _operations(broker: Broker, clients: Clients) -> OperationRequests:
    return OperationRequests(
        clients=clients,
        subscriptions=broker.subscriptions,
        tables=broker.store.tables,
        settings=broker.settings,
        audit=broker.access.audit,
    )


def _bulk(broker: Broker) -> BulkRequests:
    return BulkRequests(
        plans=broker.store.bulk,
        commit=broker.store.commit,
        tables=broker.store.tables,
        clock=broker.clock,
        settings=broker.settings,
        jobs=broker.bulk_jobs,
    )
