"""`tickwheel push` as a process: what is due reaches its URL signed, and nothing is acked that was not answered 2xx,
whatever is killed meanwhile."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import trio
from cloudevents.core.bindings.http import HTTPMessage, from_binary, from_structured
from cloudevents.core.formats.json import JSONFormat
from standardwebhooks import Webhook

import tickwheel
from tests.support.clients.http_client import get
from tests.support.clients.receiver import Answer, Received, Receiver
from tests.support.clients.waiting import until
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel.client.consumer.headers import headers_of
from tickwheel.errors import BadEndpoint, EndpointInUse, UnknownEndpoint, UnknownTopic
from tickwheel.protocol.receipts import decode_receipt


class Pusher:
    """The process; it may call this machine."""

    def __init__(self, url: str, folder: Path, *receivers: Receiver, flags: tuple[str, ...] = ()) -> None:
        ports = [flag for receiver in receivers for flag in ("--port", str(receiver.port))]
        shell = Shell(folder, url)
        shell.environment |= {
            "TICKWHEEL_PUSH_ALLOW_NETWORK": "127.0.0.0/8 ::1/128",
            "TICKWHEEL_PUSH_ALLOW_HTTP": "1",
            "TICKWHEEL_PUSH_METRICS": "127.0.0.1:0",
        }
        self.process = shell.start("push", "--json", *ports, "--refresh", "100ms", *flags)
        line = self.process.stdout.readline()
        assert line, self._said()
        self.metrics = json.loads(line)["metrics"]

    def _said(self) -> str:
        return self.process.stderr.read().decode()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.communicate()

    def end(self, how: int = signal.SIGTERM) -> int:
        """Ask it to end, and wait until it has."""
        self.process.send_signal(how)
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.wait()

    def __enter__(self) -> Pusher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        self.process.stdout.close()
        self.process.stderr.close()


class Shared:
    """One process and one receiver for the tests that end neither; each test has paths of its own."""

    def __init__(self, receiver: Receiver, pusher: Pusher) -> None:
        self.receiver = receiver
        self.pusher = pusher
        self.answers: dict[str, Callable[[Received], Answer]] = {}
        receiver.answer = lambda request: self.answers.get(request.path, _ok)(request)

    def url(self, path: str, answer: Callable[[Received], Answer] | None = None) -> str:
        """Of a path, which is answered 200 unless it is said otherwise."""
        if answer is not None:
            self.answers[path] = answer
        return f"{self.receiver.url}{path}"

    def seen(self, path: str) -> list[Received]:
        """What came there."""
        return [request for request in self.receiver.seen if request.path == path]

    def answered(self, path: str) -> list[int]:
        """With which statuses."""
        return [status for request, status in self.receiver.answered if request.path == path]


def _ok(request: Received) -> Answer:
    return Answer()


@pytest.fixture(scope="module")
def shared(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with Receiver() as receiver, Pusher(daemon.url, tmp_path_factory.mktemp("pusher"), receiver) as pusher:
        yield Shared(receiver, pusher)
        assert pusher.end() == 0


async def ended(client: tickwheel.Client, topic: str, endpoint: str) -> None:
    """Until the group is done with everything."""
    while (await client.group(topic, f"push.{endpoint}")).backlog:
        await trio.sleep(0.05)


async def dead_letters(client: tickwheel.Client, topic: str, count: int) -> dict[bytes, str]:
    """Bodies, and what is told of them, once there are so many."""
    with trio.fail_after(PATIENCE_S):
        while True:
            with suppress(UnknownTopic):
                letters = await client.browse(f"{topic}.dead", max_body_bytes=100)
                if len(letters) >= count:
                    return {
                        letter.body: str(headers_of(letter.id, letter.headers_bytes)) for letter in letters
                    }
            await trio.sleep(0.05)


def event_of(request: Received, *, binary: bool) -> dict[str, Any]:
    message = HTTPMessage(dict(request.headers), request.body)
    event = (from_binary if binary else from_structured)(message, JSONFormat())
    return {**event.get_attributes(), "data": event.get_data()}


async def test_what_is_due_arrives_signed_and_as_an_event(daemon: Daemon, shared: Shared) -> None:
    async with tickwheel.Client(daemon.url) as client:
        own = {"Authorization": "Bearer its-own"}
        await client.set_endpoint("first", topic="first", url=shared.url("/binary"), headers=own)
        await client.set_endpoint("second", topic="first", url=shared.url("/json"), format="structured")
        sent = await client.send(
            "first",
            b'{"order": 17}',
            key="order 17",
            delay=timedelta(milliseconds=300),
            headers={"content-type": "application/json"},
        )
        await until(lambda: shared.seen("/binary") and shared.seen("/json"))
        await ended(client, "first", "first")
        secrets = {name: (await client.endpoint(name)).secrets[0] for name in ("first", "second")}
        group = await client.group("first", "push.first")
        assert (group.acked, group.dead) == (1, 0)
    (binary,), (structured,) = shared.seen("/binary"), shared.seen("/json")
    for request, secret in ((binary, secrets["first"]), (structured, secrets["second"])):
        Webhook(secret).verify(request.body, dict(request.headers), json_parse=False)
        event = event_of(request, binary=request is binary)
        assert (event["data"], event["subject"], event["id"]) == ({"order": 17}, "order 17", f"msg_{sent.id}")
        assert request.headers["tickwheel-attempt"] == "1"
    assert binary.headers["authorization"] == "Bearer its-own"
    assert "authorization" not in structured.headers
    metrics = shared.pusher.metrics
    assert 'tickwheel_push_attempts_total{endpoint="first",outcome="delivered"} 1.0' in get(metrics).text
    assert [get(metrics.replace("/metrics", path)).status for path in ("/livez", "/readyz", "/x")] == [
        200,
        200,
        404,
    ]


async def test_each_answer_has_its_outcome(daemon: Daemon, shared: Shared) -> None:
    answers: dict[str, list[Answer]] = {
        "fails once": [Answer(500), Answer(204)],
        "is refused": [Answer(422, body=b"no such order")],
        "fails": [Answer(500, body=b"1"), Answer(503, {"retry-after": "0"}), Answer(302, {"location": "/x"})],
        "is held": [Answer(202, {"tickwheel-lease": "10m"})],
    }
    async with tickwheel.Client(daemon.url) as client:
        await client.set_endpoint(
            "answers",
            topic="answers",
            url=shared.url("/in", lambda request: answers[request.body.decode()].pop(0)),
            retry_delays=[timedelta(milliseconds=20)] * 2,
            give_up_on=[422],
            may_hold=True,
        )
        ids = {body: (await client.send("answers", body.encode())).id for body in answers}
        await until(lambda: not any(answers.values()))

        async def state(body: str) -> str:
            found = await client.message(id=ids[body])
            assert found is not None
            return next(group.state for group in found.groups if group.group == "push.answers")

        becomes = {"fails once": "acked", "is refused": "dead", "fails": "dead", "is held": "leased"}
        for body, expected in becomes.items():
            with trio.fail_after(PATIENCE_S):
                while await state(body) != expected:
                    await trio.sleep(0.05)
        dead = await dead_letters(client, "answers", 2)
        assert "HTTP 422 no such order" in dead[b"is refused"]
        assert "HTTP 302" in dead[b"fails"]
        held = next(request for request in shared.seen("/in") if request.body == b"is held")
        receipt = decode_receipt("answers", "push.answers", held.headers["tickwheel-receipt"])
        assert await client.ack(receipt.group_id, [(receipt.id, receipt.epoch)]) == ["acked"]
    failing = [request.headers for request in shared.seen("/in") if request.body == b"fails"]
    assert len({headers["webhook-id"] for headers in failing}) == 1
    assert [headers["tickwheel-attempt"] for headers in failing] == ["1", "2", "3"]
    assert shared.seen("/x") == []


async def test_410_disables_and_enabling_goes_on(daemon: Daemon, shared: Shared) -> None:
    status = 410
    async with tickwheel.Client(daemon.url) as client:
        url = shared.url("/gone", lambda request: Answer(status))
        await client.set_endpoint("gone", topic="gone", url=url)
        await client.send("gone", b"1")
        with trio.fail_after(PATIENCE_S):
            while (endpoint := await client.endpoint("gone")).enabled:
                await trio.sleep(0.05)
        assert endpoint.disabled_reason == "HTTP 410"
        assert (await client.group("gone", "push.gone")).backlog == 1
        status = 200
        await client.enable_endpoint("gone")
        with trio.fail_after(PATIENCE_S):
            await ended(client, "gone", "gone")
    assert shared.answered("/gone") == [410, 200]


async def test_it_follows_the_endpoints(daemon: Daemon, shared: Shared) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.set_endpoint("moves", topic="moves", url=shared.url("/old"))
        await client.send("moves", b"1")
        await until(lambda: shared.seen("/old"))
        await client.set_endpoint("moves", url=shared.url("/new"))
        with trio.fail_after(PATIENCE_S):
            while not shared.seen("/new"):
                await client.send("moves", b"2")
                await trio.sleep(0.1)
        await client.disable_endpoint("moves")
        with trio.fail_after(PATIENCE_S):
            count = -1
            while count != len(shared.seen("/new")):  # it was heard of when nothing comes any more
                count = len(shared.seen("/new"))
                await client.send("moves", b"3")
                await trio.sleep(0.5)
        assert (await client.group("moves", "push.moves")).backlog > 0


async def test_tasks_go_where_they_say(daemon: Daemon, shared: Shared) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.set_endpoint("tasks", topic="http-tasks", allow_urls=[shared.url("/jobs/*")])
        await client.send_http_task(shared.url("/jobs/7?x=1"), b"7", method="PUT", headers={"X-Kind": "late"})
        await client.send("http-tasks", b"forged", headers={"tickwheel-url": shared.url("/admin")})
        with trio.fail_after(PATIENCE_S):
            await ended(client, "http-tasks", "tasks")
        assert "allow_urls" in (await dead_letters(client, "http-tasks", 1))[b"forged"]
    (request,) = shared.seen("/jobs/7?x=1")
    assert (request.method, request.body, request.headers["x-kind"]) == ("PUT", b"7", "late")
    assert shared.seen("/admin") == []


async def test_a_hanging_endpoint_keeps_no_other_one_waiting(daemon: Daemon, shared: Shared) -> None:
    free = threading.Event()

    def hangs(request: Received) -> Answer:
        assert free.wait(PATIENCE_S)
        return Answer()

    try:
        async with tickwheel.Client(daemon.url) as client:
            long = timedelta(seconds=300)
            await client.set_endpoint("slow", topic="both", url=shared.url("/slow", hangs), timeout=long)
            await client.set_endpoint("quick", topic="both", url=shared.url("/quick"))
            await client.send_many("both", [b"%d" % number for number in range(50)])
            await until(lambda: len(shared.seen("/quick")) == 50)
            with trio.fail_after(PATIENCE_S):
                await ended(client, "both", "quick")
            # All of them, while the other one has not answered the first.
            assert shared.answered("/slow") == []
            assert (await client.group("both", "push.slow")).acked == 0
    finally:
        free.set()


async def test_schedules_call_urls(daemon: Daemon, shared: Shared) -> None:
    """That of an endpoint, and those of tasks."""
    often = timedelta(milliseconds=200)
    async with tickwheel.Client(daemon.url) as client:
        await client.set_endpoint("bell", topic="bells", url=shared.url("/bell"))
        await client.create_schedule("bell", "bells", every=often, body=b"ring")
        await client.set_endpoint("jobs", topic="jobs", allow_urls=[shared.url("/cron/*")])
        headers = tickwheel.task_headers(shared.url("/cron/clean"), method="DELETE")
        await client.create_schedule("clean", "jobs", every=often, headers=headers)
        await until(lambda: len(shared.seen("/bell")) >= 2 and len(shared.seen("/cron/clean")) >= 2)
        for name in ("bell", "clean"):
            await client.delete_schedule(name)
    assert {(one.method, one.body) for one in shared.seen("/bell")} == {("POST", b"ring")}
    assert {(one.method, one.body) for one in shared.seen("/cron/clean")} == {("DELETE", b"")}


async def test_an_endpoint_that_is_served_is_deleted_once_it_is_disabled(
    daemon: Daemon, shared: Shared
) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.set_endpoint("ends", topic="ends", url=shared.url("/ends"))
        await client.send("ends", b"1")
        await until(lambda: shared.seen("/ends"))
        await client.disable_endpoint("ends")
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    await client.delete_endpoint("ends")
                except EndpointInUse:
                    await trio.sleep(0.05)
                else:
                    break
        assert await client.groups("ends") == []


async def test_inside_is_not_called_unless_it_is_allowed(daemon: Daemon, tmp_path: Path) -> None:
    with Receiver() as receiver:
        shell = Shell(tmp_path, daemon.url)
        flags = ["push", "--allow-http", "--port", str(receiver.port), "--refresh", "100ms", "--json"]
        process = shell.popen(*flags)
        try:
            async with tickwheel.Client(daemon.url) as client:
                url = f"http://localhost:{receiver.port}/"
                await client.set_endpoint("inside", topic="inside", url=url, retry_delays=[])
                await client.send("inside", b"1")
                assert "not a public address" in (await dead_letters(client, "inside", 1))[b"1"]
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)
        assert receiver.seen == []


async def test_sigterm_waits_for_answers_and_gives_the_rest_back(daemon: Daemon, tmp_path: Path) -> None:
    free = threading.Event()

    def waits(request: Received) -> Answer:
        if request.body == b"hangs":
            free.wait(PATIENCE_S)
        return Answer()

    with (
        Receiver(waits) as receiver,
        Pusher(daemon.url, tmp_path, receiver, flags=("--drain", "1s")) as pusher,
    ):
        async with tickwheel.Client(daemon.url) as client:
            await client.set_endpoint(
                "drain", topic="drain", url=receiver.url, timeout=timedelta(seconds=300), max_in_flight=2
            )
            await client.send_many("drain", [b"hangs", b"hangs", b"waits in the broker"])
            await trio.to_thread.run_sync(receiver.wait_for, lambda seen: len(seen) == 2)
            assert await trio.to_thread.run_sync(pusher.end) == 0
            group = await client.group("drain", "push.drain")
            assert (group.leased, group.acked, group.backlog) == (0, 0, 3)
            free.set()
            with Pusher(daemon.url, tmp_path, receiver), trio.fail_after(PATIENCE_S):
                await ended(client, "drain", "drain")
            attempts = [request.headers["tickwheel-attempt"] for request in receiver.seen]
            assert set(attempts) == {"1"}  # what was given back was no attempt


@pytest.mark.parametrize("killed", ["push", "broker"])
async def test_killed_in_the_middle_of_requests(killed: str, tmp_path: Path) -> None:
    """Each message was answered 2xx at least once, and none is acked that was not."""
    fails = 0

    def sometimes(request: Received) -> Answer:
        nonlocal fails
        fails += 1
        return Answer(500 if fails % 5 == 0 else 200)

    bodies = [b"%d" % number for number in range(400)]
    with Receiver(sometimes) as receiver, Daemon(tmp_path / "data") as daemon:
        port = int(daemon.url.rpartition(":")[2])
        async with tickwheel.Client(daemon.url) as client:
            await client.set_endpoint(
                "shop", topic="t", url=receiver.url, timeout=timedelta(seconds=1), max_in_flight=16,
                retry_delays=[timedelta(milliseconds=10)] * 50,
            )  # fmt: skip
            await client.send_many("t", bodies, auto_key=True)
        pusher = Pusher(daemon.url, tmp_path, receiver)
        try:
            for kills in range(1, 3):
                wanted = 130 * kills
                await until(lambda wanted=wanted: len(receiver.seen) >= wanted)  # type: ignore[misc]
                if killed == "push":
                    pusher.kill()
                    pusher = Pusher(daemon.url, tmp_path, receiver)
                else:
                    daemon.kill()
                    daemon._settings["listen_port"] = port
                    daemon.start()
            async with tickwheel.Client(daemon.url) as client:
                with trio.fail_after(3 * PATIENCE_S):
                    await ended(client, "t", "shop")
                group = await client.group("t", "push.shop")
                assert (group.acked, group.dead) == (len(bodies), 0)
        finally:
            pusher.kill()
            pusher.__exit__(None, None, None)
        done = {request.body for request, status in receiver.answered if status == 200}
        assert done == set(bodies)


async def test_an_endpoint_is_tried(daemon: Daemon, shared: Shared, tmp_path: Path) -> None:
    answers = [Answer(204), Answer(500, body=b"oops"), Answer(410), Answer(200)]
    shell = Shell(tmp_path, daemon.url)

    async def tried(*flags: str, code: int = 0) -> Any:
        done = await trio.to_thread.run_sync(lambda: shell.run("endpoints", "test", *flags, code=code))
        return done.stdout.decode()

    async with (
        tickwheel.Client(daemon.url) as client,
        client.subscribe("tried", group="other") as others,
    ):
        url = shared.url("/tried", lambda request: answers.pop(0))
        made = await client.set_endpoint("tried", topic="tried", url=url)
        await client.set_endpoint("untried", topic="tried", url=shared.url("/untried"))
        await client.set_endpoint("no-url", topic="tried", allow_urls=[shared.url("/*")])
        good = json.loads(await tried("tried", "--json"))
        assert (good["outcome"], good["status"], good["error"]) == ("acked", None, "")
        (request,) = shared.seen("/tried")
        Webhook(made.secrets[0]).verify(request.body, dict(request.headers))
        assert event_of(request, binary=True)["type"] == "tickwheel.test"
        assert request.headers["webhook-id"] == f"msg_{good['id']}"
        said = await tried("tried", code=1)
        assert said.endswith(": nacked: HTTP 500 oops\n"), "it is not tried again"
        await client.disable_endpoint("tried", "it moves")
        gone = json.loads(await tried("tried", "--json", code=1))
        assert (gone["status"], gone["error"]) == (410, "HTTP 410")
        assert (await client.endpoint("tried")).disabled_reason == "it moves", "it was only asked"
        await client.enable_endpoint("tried")
        sent = await client.send("tried", b"17")
        with trio.fail_after(PATIENCE_S):
            while (await client.group("tried", "push.tried")).acked < 1:
                await trio.sleep(0.05)
        message = await anext(others)
        assert message.body == b"17", "no consumer of the topic sees a test"
        with pytest.raises(BadEndpoint):
            await client.test_endpoint("no-url")
        with pytest.raises(UnknownEndpoint):
            await client.test_endpoint("unknown")

        found = await client.endpoint_attempts("tried")
        assert [(one.id, one.number, one.outcome, one.status) for one in found.attempts] == [
            (sent.id, 1, "acked", None),
            (gone["id"], 1, "nacked", 410),
            (int(said.partition(":")[0]), 1, "nacked", 500),
            (good["id"], 1, "acked", None),
        ]
        assert all(one.lateness is not None and one.lateness >= timedelta(0) for one in found.attempts)
        assert (found.next, found.missing) == (None, [])
        listed = ("endpoints", "attempts", "tried")
        table = await trio.to_thread.run_sync(lambda: shell.text(*listed))
        assert [line.split()[1] for line in table.splitlines()[1:]] == [str(one.id) for one in found.attempts]
        assert "test, nacked: HTTP 500 oops\n" in table
        page = await trio.to_thread.run_sync(lambda: shell.run(*listed, "--limit", "3", "--json"))
        place = page.stderr.decode().strip().removeprefix("next: ")
        rest = await trio.to_thread.run_sync(lambda: shell.json(*listed, "--before", place))
        assert [one["id"] for one in [*json.loads(page.stdout), *rest]] == [one.id for one in found.attempts]
        assert (await client.endpoint_attempts("untried")).attempts[0].id == sent.id
        assert [len(shared.seen(path)) for path in ("/tried", "/untried")] == [4, 1]
        assert not [topic.name for topic in await client.topics() if topic.name.endswith("-tests.dead")]


async def test_its_settings_come_from_a_file(daemon: Daemon, tmp_path: Path) -> None:
    """The environment wins over it, and flags over both, as for the broker."""
    file = tmp_path / "tickwheel.toml"
    with Receiver() as receiver:
        file.write_text(
            'ack_wait = "45s"\n'  # the broker's
            'push_allow_network = "127.0.0.0/8 ::1/128"\n'
            "push_allow_http = true\n"
            f'push_port = "{receiver.port} 8080"\n'
            'push_metrics = "nowhere.invalid:1"\n'
            'push_refresh = "100ms"\n'
            'push_drain = "1h"\n'
        )
        shell = Shell(tmp_path, daemon.url)
        shell.environment |= {"TICKWHEEL_CONFIG": str(file), "TICKWHEEL_PUSH_METRICS": "127.0.0.1:0"}
        process = shell.popen("push", "--json", "--drain", "1s")
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["metrics"].startswith("http://127.0.0.1:")
        async with tickwheel.Client(daemon.url) as client:
            await client.set_endpoint("filed", topic="filed", url=f"{receiver.url}/filed")
            await client.send("filed", b"x")
            await trio.to_thread.run_sync(receiver.wait_for, bool)
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    for text, problem in (
        ('push_port = "no"', "push_port"),
        ("push_allow_htp = true", "did you mean push_allow_http"),
        ('push_endpoint_ca = "/no/such"', "bad_certificate"),
    ):
        file.write_text(text)
        refused = shell.run_here(("push",))
        assert refused.returncode > 0
        assert problem in refused.stderr.decode()


def test_what_it_cannot_do_is_said(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "tickwheel://127.0.0.1:1")
    assert shell.error("push", code=69)["code"] == "not_connected"
    for flags in (["--allow-network", "10.0.0.1/8"], ["--metrics", "7414"], ["--port", "0"], ["--data", "x"]):
        assert shell.run_here(("push", *flags)).returncode == 2
    bad = tmp_path / "ca.pem"
    bad.write_text("nothing")
    refused = shell.run_here(("--json", "push", "--endpoint-ca", str(bad)))
    assert json.loads(refused.stderr)["error"]["code"] == "bad_certificate"


async def test_what_it_was_given_while_it_stood_still_was_no_attempt(daemon: Daemon, tmp_path: Path) -> None:
    """SIGSTOP, until the leases have ended: each message is carried to the end all the same, though it is tried once
    only."""
    bodies = [b"%d" % number for number in range(5)]
    with Receiver() as receiver, Pusher(daemon.url, tmp_path, receiver) as pusher:
        async with tickwheel.Client(daemon.url) as client:
            await client.set_endpoint(
                "paused", topic="paused", url=receiver.url, timeout=timedelta(seconds=1), retry_delays=[]
            )
            await client.send("paused", b"before")
            with trio.fail_after(PATIENCE_S):
                await ended(client, "paused", "paused")
                pusher.process.send_signal(signal.SIGSTOP)
                await client.send_many("paused", bodies)
                while not (await client.group("paused", "push.paused")).leased:
                    await trio.sleep(0.05)
                while (await client.group("paused", "push.paused")).leased:
                    await trio.sleep(0.05)
                assert (await client.group("paused", "push.paused")).backlog == len(bodies)
                pusher.process.send_signal(signal.SIGCONT)
                await ended(client, "paused", "paused")
            group = await client.group("paused", "push.paused")
            assert (group.acked, group.dead) == (1 + len(bodies), 0)
        assert {request.body for request in receiver.seen} == {b"before", *bodies}
