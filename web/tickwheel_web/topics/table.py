"""The endpoints of topics and groups."""

from __future__ import annotations

from typing import Final

from tickwheel_web.endpoints import Endpoint
from tickwheel_web.shapes import JSON, ConfirmQuery, PageQuery
from tickwheel_web.topics import groups, topics
from tickwheel_web.topics.shapes import (
    Backlog,
    ChangedGroup,
    ChangedTopic,
    DeletedTopic,
    Group,
    Groups,
    NewGroup,
    NewTopic,
    Seek,
    Topic,
    Topics,
)

_TOPIC: Final = "/v1/topics/{topic}"
_GROUP: Final = "/v1/topics/{topic}/groups/{group}"
_ADMIN: Final = "admin:{topic}"
_CONSUME: Final = "consume:{topic}"
_LOOK: Final = "any on {topic}"
_READING: Final = (404, 408, 409, 413, 415)

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        "GET",
        "/v1/topics",
        topics.list_topics,
        "List the topics that the token sees",
        "any",
        {200: Topics},
        (),
        query=PageQuery,
    ),
    Endpoint(
        "GET", _TOPIC, topics.get_topic, "Look at a topic and its settings", _LOOK, {200: Topic}, (404,)
    ),
    Endpoint(
        "PUT",
        _TOPIC,
        topics.put_topic,
        "Create a topic; one that is there must have exactly these settings",
        _ADMIN,
        {200: Topic, 201: Topic},
        _READING,
        requests={JSON: NewTopic},
        example={"settings": {"ack_wait": "10s", "max_attempts": 5}},
        leads_to=(
            topics.get_topic,
            topics.change_topic,
            topics.pause_topic,
            topics.resume_topic,
            groups.list_groups,
            topics.delete_topic,
        ),
    ),
    Endpoint(
        "PATCH",
        _TOPIC,
        topics.change_topic,
        "Change settings of a topic, all that are given or none",
        _ADMIN,
        {200: Topic},
        _READING,
        requests={JSON: ChangedTopic},
        example={"settings": {"rate": 500, "ack_wait": None}},
    ),
    Endpoint(
        "DELETE",
        _TOPIC,
        topics.delete_topic,
        "Delete a topic with all its messages and groups",
        _ADMIN,
        {200: DeletedTopic},
        (404, 409),
        query=ConfirmQuery,
    ),
    Endpoint(
        "POST",
        f"{_TOPIC}/pause",
        topics.pause_topic,
        "Deliver nothing of a topic until it is resumed",
        _ADMIN,
        {200: Topic},
        (404,),
    ),
    Endpoint(
        "POST",
        f"{_TOPIC}/resume",
        topics.resume_topic,
        "Deliver the messages of a paused topic again",
        _ADMIN,
        {200: Topic},
        (404,),
    ),
    Endpoint(
        "GET",
        f"{_TOPIC}/groups",
        groups.list_groups,
        "List the consumer groups of a topic",
        _LOOK,
        {200: Groups},
        (404,),
        query=PageQuery,
    ),
    Endpoint("GET", _GROUP, groups.get_group, "Look at a consumer group", _LOOK, {200: Group}, (404,)),
    Endpoint(
        "PUT",
        _GROUP,
        groups.put_group,
        "Create a consumer group; one that is there stays as it is",
        _CONSUME,
        {200: Group, 201: Group},
        _READING,
        requests={JSON: NewGroup},
        example={"start": "latest", "ephemeral": "1h"},
        leads_to=(groups.get_group, groups.change_group, groups.seek_group, groups.delete_group),
    ),
    Endpoint(
        "PATCH",
        _GROUP,
        groups.change_group,
        "Change how a consumer group is given messages",
        _CONSUME,
        {200: Group},
        _READING,
        requests={JSON: ChangedGroup},
        example={"ignore_ordering_keys": True},
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/seek",
        groups.seek_group,
        "Let a consumer group go on elsewhere: what lies from there on is delivered again",
        _CONSUME,
        {200: Backlog},
        _READING,
        requests={JSON: Seek},
        example={"to_time": "2031-05-01T00:00:00Z"},
    ),
    Endpoint(
        "DELETE",
        _GROUP,
        groups.delete_group,
        "Delete a consumer group; messages are kept for it no longer",
        _ADMIN,
        {200: Backlog},
        (404, 409),
        query=ConfirmQuery,
    ),
)
