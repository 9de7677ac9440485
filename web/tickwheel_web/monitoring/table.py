"""The endpoints of what the broker does."""

from __future__ import annotations

from typing import Final

from tickwheel_web.endpoints import Endpoint
from tickwheel_web.monitoring import figures, log, operations, watching
from tickwheel_web.monitoring.shapes import (
    AskPurge,
    AuditEntries,
    AuditQuery,
    BrokerFigures,
    BrokerStats,
    Connections,
    Disconnected,
    FigureChanges,
    Horizons,
    HorizonsQuery,
    LogEntries,
    LogQuery,
    Purged,
    WheelPicture,
)
from tickwheel_web.shapes import EVENTS, JSON, PageQuery

_LOOK: Final = "query:*"
_ADMIN: Final = "admin:*"

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        method="GET",
        path="/v1/stats",
        answering=figures.get_stats,
        summary="The broker's figures",
        right=_LOOK,
        answers={200: BrokerStats},
        problems=(),
    ),
    Endpoint(
        method="GET",
        path="/v1/figures",
        answering=figures.get_figures,
        summary="All that the broker counts, as its metrics have it, and each topic and group",
        right=_LOOK,
        answers={200: BrokerFigures},
        problems=(),
    ),
    Endpoint(
        method="GET",
        path="/v1/events",
        answering=watching.watch_figures,
        summary="Stream the figures, as server-sent events: all, then each second those that have changed",
        right=_LOOK,
        answers={200: FigureChanges},
        problems=(),
        media_type=EVENTS,
    ),
    Endpoint(
        method="GET",
        path="/v1/log",
        answering=log.list_log,
        summary="What has happened at the broker, from its log on disk",
        right=_LOOK,
        answers={200: LogEntries},
        problems=(),
        query=LogQuery,
    ),
    Endpoint(
        method="GET",
        path="/v1/wheel",
        answering=figures.get_wheel,
        summary="The wheel's levels, and what is due when",
        right=_LOOK,
        answers={200: WheelPicture},
        problems=(),
    ),
    Endpoint(
        method="GET",
        path="/v1/forecast",
        answering=figures.get_forecast,
        summary="How much is due within each of the durations, exactly",
        right=_LOOK,
        answers={200: Horizons},
        problems=(),
        query=HorizonsQuery,
    ),
    Endpoint(
        method="GET",
        path="/v1/clients",
        answering=operations.list_clients,
        summary="Who is connected to the broker, and what they hold",
        right=_ADMIN,
        answers={200: Connections},
        problems=(),
        query=PageQuery,
    ),
    Endpoint(
        method="DELETE",
        path="/v1/clients/{client}",
        answering=operations.disconnect_client,
        summary="Close a connection; what it holds goes to others at once",
        right=_ADMIN,
        answers={200: Disconnected},
        problems=(404,),
    ),
    Endpoint(
        method="GET",
        path="/v1/audit",
        answering=operations.list_audit,
        summary="The last lines of the broker's audit log, or those after one",
        right=_ADMIN,
        answers={200: AuditEntries},
        problems=(),
        query=AuditQuery,
    ),
    Endpoint(
        method="POST",
        path="/v1/purge",
        answering=operations.purge_messages,
        summary="Give the disk space of messages that are done back now",
        right=_ADMIN,
        answers={200: Purged},
        problems=(408, 413, 415),
        requests={JSON: AskPurge},
        example={"dry_run": True},
    ),
)
