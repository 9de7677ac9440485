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
        method="GET",
        path="/v1/topics",
        answering=topics.list_topics,
        summary="List the topics that the token sees",
        right="any",
        answers={200: Topics},
        problems=(),
        query=PageQuery,
    ),
    Endpoint(
        method="GET",
        path=_TOPIC,
        answering=topics.get_topic,
        summary="Look at a topic and its settings",
        right=_LOOK,
        answers={200: Topic},
        problems=(404,),
    ),
    Endpoint(
        method="PUT",
        path=_TOPIC,
        answering=topics.put_topic,
        summary="Create a topic; one that is there must have exactly these settings",
        right=_ADMIN,
        answers={200: Topic, 201: Topic},
        problems=_READING,
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
        method="PATCH",
        path=_TOPIC,
        answering=topics.change_topic,
        summary="Change settings of a topic, all that are given or none",
        right=_ADMIN,
        answers={200: Topic},
        problems=_READING,
        requests={JSON: ChangedTopic},
        example={"settings": {"rate": 500, "ack_wait": None}},
    ),
    Endpoint(
        method="DELETE",
        path=_TOPIC,
        answering=topics.delete_topic,
        summary="Delete a topic with all its messages and groups",
        right=_ADMIN,
        answers={200: DeletedTopic},
        problems=(404, 409),
        query=ConfirmQuery,
    ),
    Endpoint(
        method="POST",
        path=f"{_TOPIC}/pause",
        answering=topics.pause_topic,
        summary="Deliver nothing of a topic until it is resumed",
        right=_ADMIN,
        answers={200: Topic},
        problems=(404,),
    ),
    Endpoint(
        method="POST",
        path=f"{_TOPIC}/resume",
        answering=topics.resume_topic,
        summary="Deliver the messages of a paused topic again",
        right=_ADMIN,
        answers={200: Topic},
        problems=(404,),
    ),
    Endpoint(
        method="GET",
        path=f"{_TOPIC}/groups",
        answering=groups.list_groups,
        summary="List the consumer groups of a topic",
        right=_LOOK,
        answers={200: Groups},
        problems=(404,),
        query=PageQuery,
    ),
    Endpoint(
        method="GET",
        path=_GROUP,
        answering=groups.get_group,
        summary="Look at a consumer group",
        right=_LOOK,
        answers={200: Group},
        problems=(404,),
    ),
    Endpoint(
        method="PUT",
        path=_GROUP,
        answering=groups.put_group,
        summary="Create a consumer group; one that is there stays as it is",
        right=_CONSUME,
        answers={200: Group, 201: Group},
        problems=_READING,
        requests={JSON: NewGroup},
        example={"start": "latest", "ephemeral": "1h"},
        leads_to=(groups.get_group, groups.change_group, groups.seek_group, groups.delete_group),
    ),
    Endpoint(
        method="PATCH",
        path=_GROUP,
        answering=groups.change_group,
        summary="Change how a consumer group is given messages",
        right=_CONSUME,
        answers={200: Group},
        problems=_READING,
        requests={JSON: ChangedGroup},
        example={"ignore_ordering_keys": True},
    ),
    Endpoint(
        method="POST",
        path=f"{_GROUP}/seek",
        answering=groups.seek_group,
        summary="Let a consumer group go on elsewhere: what lies from there on is delivered again",
        right=_CONSUME,
        answers={200: Backlog},
        problems=_READING,
        requests={JSON: Seek},
        example={"to_time": "2031-05-01T00:00:00Z"},
    ),
    Endpoint(
        method="DELETE",
        path=_GROUP,
        answering=groups.delete_group,
        summary="Delete a consumer group; messages are kept for it no longer",
        right=_ADMIN,
        answers={200: Backlog},
        problems=(404, 409),
        query=ConfirmQuery,
    ),
)
