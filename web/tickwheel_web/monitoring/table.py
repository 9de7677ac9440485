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
    Endpoint("GET", "/v1/stats", figures.get_stats, "The broker's figures", _LOOK, {200: BrokerStats}, ()),
    Endpoint(
        "GET",
        "/v1/figures",
        figures.get_figures,
        "All that the broker counts, as its metrics have it, and each topic and group",
        _LOOK,
        {200: BrokerFigures},
        (),
    ),
    Endpoint(
        "GET",
        "/v1/events",
        watching.watch_figures,
        "Stream the figures, as server-sent events: all, then each second those that have changed",
        _LOOK,
        {200: FigureChanges},
        (),
        media_type=EVENTS,
    ),
    Endpoint(
        "GET",
        "/v1/log",
        log.list_log,
        "What has happened at the broker, from its log on disk",
        _LOOK,
        {200: LogEntries},
        (),
        query=LogQuery,
    ),
    Endpoint(
        "GET",
        "/v1/wheel",
        figures.get_wheel,
        "The wheel's levels, and what is due when",
        _LOOK,
        {200: WheelPicture},
        (),
    ),
    Endpoint(
        "GET",
        "/v1/forecast",
        figures.get_forecast,
        "How much is due within each of the durations, exactly",
        _LOOK,
        {200: Horizons},
        (),
        query=HorizonsQuery,
    ),
    Endpoint(
        "GET",
        "/v1/clients",
        operations.list_clients,
        "Who is connected to the broker, and what they hold",
        _ADMIN,
        {200: Connections},
        (),
        query=PageQuery,
    ),
    Endpoint(
        "DELETE",
        "/v1/clients/{client}",
        operations.disconnect_client,
        "Close a connection; what it holds goes to others at once",
        _ADMIN,
        {200: Disconnected},
        (404,),
    ),
    Endpoint(
        "GET",
        "/v1/audit",
        operations.list_audit,
        "The last lines of the broker's audit log, or those after one",
        _ADMIN,
        {200: AuditEntries},
        (),
        query=AuditQuery,
    ),
    Endpoint(
        "POST",
        "/v1/purge",
        operations.purge_messages,
        "Give the disk space of messages that are done back now",
        _ADMIN,
        {200: Purged},
        (408, 413, 415),
        requests={JSON: AskPurge},
        example={"dry_run": True},
    ),
)
