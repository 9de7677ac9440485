"""Every request needs a right: none is forgotten, and each is refused to who has it for other topics only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tests.support.native.driver import NOW_MS, SMALL
from tickwheel.protocol.bodies.admin import (
    Browse,
    Decide,
    DeleteTopic,
    Drop,
    GetTopic,
    Prepare,
    Purge,
    ReplayDead,
    SetTopic,
)
from tickwheel.protocol.bodies.base import Request
from tickwheel.protocol.bodies.bulk import AdoptJob, PlanJob, ReserveIds
from tickwheel.protocol.bodies.endpoints import (
    DeleteEndpoint,
    EnableEndpoint,
    Endpoint,
    GetAttempts,
    GetEndpoints,
    SetEndpoint,
    TellEndpoints,
    TestEndpoint,
)
from tickwheel.protocol.bodies.fetching import EndFetch, Fetch
from tickwheel.protocol.bodies.groups import (
    CreateGroup,
    DeleteGroup,
    GetGroups,
    GetHistory,
    GetMessages,
    SeekGroup,
    SetGroup,
)
from tickwheel.protocol.bodies.operations import Disconnect, GetAudit, GetClients, GetEvents, GetFigures
from tickwheel.protocol.bodies.requests import (
    REQUEST_CLASSES,
    Cancel,
    GetStats,
    GetTopics,
    GetWheel,
    Hello,
    OpenTopic,
    Ping,
    Query,
    Reschedule,
    SetCredit,
    Subscribe,
    Unsubscribe,
)
from tickwheel.protocol.bodies.schedules import DeleteSchedule, GetSchedules, SetSchedule, TriggerSchedule
from tickwheel.protocol.bodies.settling import (
    Change,
    Extend,
    Nack,
    Redeliver,
    Return,
    Transaction,
    TransactionAck,
    TransactionChange,
)
from tickwheel.protocol.endpoint_states import ToldState
from tickwheel.protocol.errors import Forbidden, UnknownEndpoint, UnknownSchedule
from tickwheel.protocol.grants import PERMISSIONS, parse_grants
from tickwheel.protocol.messages import SendColumns, encode_send
from tickwheel_broker.broker import Broker
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.group_commit import InPlace
from tickwheel_broker.requests.operations import Clients
from tickwheel_broker.security.grants import Identity
from tickwheel_broker.security.rights import Rights, may_see_secrets
from tickwheel_broker.wiring import requests_of
from timerlog.store import Store

JOB = "0" * 32


class World:
    """A broker with a topic, a message, a group and a schedule for each of `mine` and `theirs`."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.requests = requests_of(broker, Clients())
        store = broker.store
        self.topic_ids = {name: store.topics.open(name, NOW_MS) for name in ("mine", "theirs")}
        self.group_ids = {
            name: store.groups.open(number, "g", NOW_MS) for name, number in self.topic_ids.items()
        }
        self.ids = {}
        for name, topic_id in self.topic_ids.items():
            self.ids[name] = store.tables.next_id
            send = store.produce.judge(encode_send(topic_id, SendColumns([b"x"], keys=[b"k"])), NOW_MS)
            store.commit.write(bytes(16), [send], [], NOW_MS)

    def rights(self, *grants: str) -> Rights:
        identity = Identity("0123456789ab", "test", parse_grants(grants))
        return Rights(
            self.broker.store.tables, self.broker.schedules.topic_of, self.broker.endpoints.find, identity
        )

    def is_admitted(self, rights: Rights, request: Request) -> bool:
        try:
            admitted = self.requests.admit(rights, request)
        except Forbidden:
            return False
        assert type(admitted) is type(request)
        return True

    def samples(self, name: str) -> dict[type[Request], tuple[str, Request]]:
        """For each request about a topic: the permission that it needs, and one about topic `name`."""
        group_id, receipts = self.group_ids[name], ([self.ids[name]], [1])
        send = encode_send(self.topic_ids[name], SendColumns([b"x"]))
        found: list[tuple[str, Request]] = [
            ("publish", OpenTopic(name, True)),
            ("publish", Prepare(name, send)),
            ("publish", Cancel(topic=name, keys=["k"])),
            ("publish", Reschedule(topic=name, keys=["k"], delay_ms=1)),
            ("publish", Change("cancel", name)),
            ("publish", Decide(True, topic=name, keys=["k"])),
            ("publish", Transaction(b"i" * 16, sends=[send])),
            ("consume", Subscribe(name, "g", 1, 1)),
            ("consume", Fetch(name, "g", 1)),
            ("consume", Nack(group_id, *receipts)),
            ("consume", Extend(group_id, *receipts, for_ms=1)),
            ("consume", Redeliver(topic=name, keys=["k"])),
            ("consume", ReplayDead(name)),
            ("query", Browse(name)),
            ("query", GetTopic(name)),
            ("query", GetGroups(name)),
            ("query", GetMessages(topic=name, keys=["k"])),
            ("query", GetHistory(topic=name, key="k", timeout_ms=1)),
            ("consume", CreateGroup(name, "new")),
            ("consume", SeekGroup(name, "g", "latest")),
            ("consume", SetGroup(name, "g", ignore_ordering_keys=True)),
            ("admin", DeleteGroup(name, "g")),
            ("admin", SetTopic(name)),
            ("admin", DeleteTopic(name)),
            ("publish", SetSchedule("new", {"topic": name}, create=True)),
            ("admin", SetEndpoint("new", {"topic": name})),
        ]
        return {type(request): (permission, request) for permission, request in found}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "data", SMALL, NOW_MS)
    yield opened
    opened.close()


@pytest.fixture
async def world(store: Store, tmp_path: Path) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        settings = Settings(data_dir=str(tmp_path))
        yield World(
            Broker(settings=settings, store=store, clock=TrioClock(NOW_MS), runner=InPlace(), nursery=nursery)
        )
        nursery.cancel_scope.cancel()


EVERYWHERE: list[tuple[str, Request]] = [
    ("query", Query("SELECT 1", 1, 1)),
    ("query", GetStats()),
    ("query", GetFigures()),
    ("query", GetEvents("latest", 1)),
    ("admin", GetClients()),
    ("admin", Disconnect(1)),
    ("admin", GetAudit()),
    ("query", GetWheel()),
    ("admin", Purge()),
    ("admin", Drop([])),
    ("publish", PlanJob(JOB, ["mine"])),
    ("publish", ReserveIds(1)),
    ("publish", AdoptJob(JOB)),
]
FREE: list[Request] = [
    Ping(),
    Unsubscribe(1),
    SetCredit(1, 1),
    Return(subscription=1, ids=[], epochs=[]),
    EndFetch(1),
    GetTopics(),
    GetSchedules(),
    GetEndpoints(),
]
BY_SCHEDULE = {DeleteSchedule, TriggerSchedule}
BY_ENDPOINT = {EnableEndpoint, DeleteEndpoint, TestEndpoint, GetAttempts, TellEndpoints}


async def test_no_request_is_forgotten(world: World) -> None:
    asked = {cls for cls in REQUEST_CLASSES.values() if cls is not Hello}
    assert set(world.requests.table) == asked
    tested = {
        *world.samples("mine"),
        *(type(r) for _, r in EVERYWHERE),
        *map(type, FREE),
        *BY_SCHEDULE,
        *BY_ENDPOINT,
    }
    assert tested == asked


async def test_a_new_request_is_refused_until_it_is_in_the_table(world: World) -> None:
    class Novelty(Request, frozen=True):
        """Not in the table."""

    with pytest.raises(Forbidden, match="Novelty is allowed to nobody"):
        world.requests.admit(world.rights("all:*"), Novelty())


async def test_each_request_needs_its_permission_for_its_topic(world: World) -> None:
    for permission, request in world.samples("mine").values():
        assert world.is_admitted(world.rights(f"{permission}:mine"), request), request
        if not isinstance(request, GetTopic | GetGroups):  # any permission lets a topic be seen
            for other in PERMISSIONS:
                assert world.is_admitted(world.rights(f"{other}:mine"), request) is (other == permission), (
                    request
                )
    for _, request in world.samples("theirs").values():
        assert not world.is_admitted(world.rights("all:mine"), request), request


async def test_messages_are_given_back_by_who_may_consume_them(world: World) -> None:
    for name, is_allowed in (("mine", True), ("theirs", False)):
        request = Return(group_id=world.group_ids[name], ids=[world.ids[name]], epochs=[1])
        assert world.is_admitted(world.rights("consume:mine"), request) is is_allowed
        assert not world.is_admitted(world.rights(f"publish:{name}"), request)


async def test_what_concerns_everything_needs_a_permission_for_everything(world: World) -> None:
    for permission, request in EVERYWHERE:
        assert world.is_admitted(world.rights(f"{permission}:*"), request)
        assert not world.is_admitted(world.rights("all:mine", "all:theirs", "all:?*"), request)
        others = [f"{other}:*" for other in PERMISSIONS if other != permission]
        assert not world.is_admitted(world.rights(*others), request)


async def test_what_concerns_the_connection_alone_is_free(world: World) -> None:
    for request in FREE:
        assert world.is_admitted(world.rights(), request)


async def test_ids_of_other_topics_are_taken_out(world: World) -> None:
    mine, theirs = world.ids["mine"], world.ids["theirs"]
    ids = [theirs, mine, 0, 1 << 50, mine]
    left = [0, mine, 0, 0, mine]
    rights = world.rights("publish:mine", "consume:mine")
    wanted: list[Any] = [
        Cancel(ids=ids),
        Reschedule(ids=ids, delay_ms=1),
        Redeliver(ids=ids),
        Decide(True, ids),
    ]
    for request in wanted:
        assert world.requests.admit(rights, request).ids == left
    history = world.rights("query:mine")
    for message_id, allowed in ((mine, mine), (theirs, 0), (1 << 50, 0)):
        assert world.requests.admit(history, GetHistory(id=message_id, timeout_ms=1)).id == allowed
    transaction = Transaction(
        b"i" * 16, changes=[TransactionChange(ids=ids), TransactionChange(topic="mine", keys=["k"])]
    )
    assert world.requests.admit(rights, transaction).changes[0].ids == left
    assert world.requests.admit(world.rights("consume:mine"), Cancel(ids=ids)).ids == [0] * 5
    assert world.broker.store.change.cancel([0], NOW_MS) == ["not_found"]


async def test_dead_letters_are_dropped_by_who_may_give_them_back(world: World) -> None:
    """By a filter, by id, by key, in a transaction: with the right that replaying them takes."""
    store = world.broker.store
    dead_id, letter = store.topics.open("mine.dead", NOW_MS), store.tables.next_id
    send = store.produce.judge(encode_send(dead_id, SendColumns([b"x"])), NOW_MS)
    store.commit.write(bytes(16), [send], [], NOW_MS)
    by_key = TransactionChange(topic="mine.dead", keys=["k"])
    for grant in (*(f"{permission}:mine" for permission in PERMISSIONS), "publish:*", "consume:mine.dead"):
        rights, is_allowed = world.rights(grant), grant.startswith("consume")
        assert world.is_admitted(rights, ReplayDead("mine")) is (grant == "consume:mine")
        for request in (
            Change("cancel", "mine.dead"),
            Change("reschedule", "mine.dead", delay_ms=1),
            Cancel(topic="mine.dead", keys=["k"], stop=True),
            Transaction(b"i" * 16, changes=[by_key]),
        ):
            assert world.is_admitted(rights, request) is is_allowed, (grant, request)
        assert world.requests.admit(rights, Cancel(ids=[letter], stop=True)).ids == [letter * is_allowed]
    assert not world.is_admitted(world.rights("all:theirs"), Change("cancel", "mine.dead"))
    assert not world.rights("all:mine").may_send(dead_id)


@pytest.mark.parametrize(
    "changed",
    [
        {"sends": ["theirs"]},
        {"sends": ["mine", "theirs"]},
        {"acks": ["theirs"]},
        {"keys": ["theirs"]},
    ],
)
async def test_each_part_of_a_transaction_is_judged(world: World, changed: dict[str, list[str]]) -> None:
    def transaction(parts: dict[str, list[str]]) -> Transaction:
        return Transaction(
            b"i" * 16,
            sends=[
                encode_send(world.topic_ids[name], SendColumns([b"x"]))
                for name in parts.get("sends", ["mine"])
            ],
            acks=[TransactionAck(world.group_ids[name], [1], [1]) for name in parts.get("acks", ["mine"])],
            changes=[TransactionChange(topic=name, keys=["k"]) for name in parts.get("keys", ["mine"])],
        )

    rights = world.rights("all:mine")
    assert world.is_admitted(rights, transaction({}))
    assert not world.is_admitted(rights, transaction(changed))


async def test_who_may_not_carry_messages_to_an_endpoint_cannot_say_how_it_goes(world: World) -> None:
    for topic in ("mine", "theirs"):
        url = f"https://{topic}.example/"
        world.broker.endpoints.put(Endpoint(name=f"of-{topic}", topic=topic, url=url), "latest")
    names = ["of-mine", "of-theirs", "of-nobody"]
    request = TellEndpoints([ToldState(endpoint=name, name="failing") for name in names])
    for grant, told in (
        ("push:mine", ["of-mine"]),
        ("admin:theirs", ["of-theirs"]),
        ("push:*", names[:2]),
        ("query:*", []),
        ("consume:*", []),
    ):
        admitted = world.requests.admit(world.rights(grant), request)
        assert [one.endpoint for one in admitted.states] == told, grant


async def test_groups_and_topics_that_are_not_there_look_like_those_of_others(world: World) -> None:
    rights = world.rights("all:mine")
    for group_id in (world.group_ids["theirs"], 9_999):
        with pytest.raises(Forbidden) as caught:
            world.requests.admit(rights, Nack(group_id, [1], [1]))
        assert caught.value.message.endswith(f"may not consume in group {group_id}.")
    for topic_id in (world.topic_ids["theirs"], 9_999):
        assert rights.refusal_of_send(topic_id.to_bytes(4, "little")).message.endswith(
            f"may not publish to topic {topic_id}."
        )
    assert (
        "publish 'mine'"
        in world.rights("query:mine").refusal_of_send(world.topic_ids["mine"].to_bytes(4, "little")).message
    )


async def test_the_number_of_a_deleted_group_brings_no_right_to_the_next_group_that_has_it(
    world: World,
) -> None:
    rights, store, number = world.rights("all:mine"), world.broker.store, world.group_ids["mine"]
    world.requests.admit(rights, Nack(number, [1], [1]))
    store.tables.settings = msgspec.structs.replace(store.settings, max_groups=store.tables.last_group_id)
    store.groups.delete("mine", store.groups.record(number).name)
    assert store.groups.open(world.topic_ids["theirs"], "other", NOW_MS) == number
    with pytest.raises(Forbidden):
        world.requests.admit(rights, Nack(number, [1], [1]))


async def test_schedules_of_other_topics_are_not_there(world: World) -> None:
    schedules = world.broker.schedules.schedules
    for name in ("mine", "theirs"):
        schedules[name] = msgspec.structs.replace(make_schedule(name))
    rights = world.rights("publish:mine")
    for request in (
        DeleteSchedule("mine"),
        TriggerSchedule("mine"),
        GetSchedules("mine"),
        SetSchedule("mine", {}),
    ):
        assert world.is_admitted(rights, request)
    for hidden in (
        DeleteSchedule("theirs"),
        TriggerSchedule("theirs"),
        GetSchedules("theirs"),
        SetSchedule("theirs", {}),
    ):
        with pytest.raises(UnknownSchedule):
            world.requests.admit(rights, hidden)
    assert not world.is_admitted(rights, SetSchedule("mine", {"topic": "theirs"}))
    assert world.is_admitted(world.rights("query:theirs"), GetSchedules("theirs"))
    assert not world.is_admitted(world.rights("query:theirs"), DeleteSchedule("theirs"))


async def test_endpoints_are_for_who_administers_their_topic(world: World) -> None:
    add_endpoints(world)
    for name, wanted in (("mine", {"admin"}), ("mine", {"admin", "push"})):
        off = EnableEndpoint(name, enabled=False)
        requests = [off] if "push" in wanted else [
            SetEndpoint(name, {"url": "https://b.example"}), EnableEndpoint(name, enabled=True), DeleteEndpoint(name),
            TestEndpoint(name), GetAttempts(name, 1),
        ]  # fmt: skip
        for request in requests:
            for permission in ("query", "admin", "push"):
                rights = world.rights(f"{permission}:mine")
                assert world.is_admitted(rights, request) is (permission in wanted), (request, permission)
    both = world.rights("admin:mine", "admin:theirs")
    assert world.is_admitted(both, SetEndpoint("mine", {"topic": "theirs"}))
    assert not world.is_admitted(world.rights("admin:mine"), SetEndpoint("mine", {"topic": "theirs"}))


async def test_endpoints_of_other_topics_are_not_there(world: World) -> None:
    add_endpoints(world)
    rights = world.rights("all:mine")
    for request in (
        GetEndpoints("theirs"),
        SetEndpoint("theirs", {}),
        EnableEndpoint("theirs", enabled=False),
        DeleteEndpoint("theirs"),
        TestEndpoint("theirs"),
        GetAttempts("theirs", 1),
    ):
        with pytest.raises(UnknownEndpoint):
            world.requests.admit(rights, request)


async def test_who_sees_the_secrets_of_an_endpoint(world: World) -> None:
    """All others who may know of the topic see it without them."""
    add_endpoints(world)
    endpoint = world.broker.endpoints.get("mine")
    for permission in PERMISSIONS:
        rights = world.rights(f"{permission}:mine")
        assert world.is_admitted(rights, GetEndpoints("mine"))
        assert may_see_secrets(rights.identity, endpoint) is (permission in ("admin", "push"))


def add_endpoints(world: World) -> None:
    for topic in ("mine", "theirs"):
        world.broker.endpoints.put(Endpoint(name=topic, topic=topic, url="https://a.example"), "latest")


def make_schedule(topic: str) -> Any:
    from tickwheel_broker.documents import schedule_slots as schedule_plan

    base = {"name": topic, "last_slot_ms": NOW_MS, "start_ms": NOW_MS}
    return schedule_plan.merged(base, {"topic": topic, "every_ms": 60_000})
