"""HTTP for a cluster: `tickwheel serve --web` answers on the node that serves, `tickwheel web` for whichever does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from tests.cluster.conftest import Topic
from tests.cluster.test_serving_nodes import tickwheel, wait
from tests.support.clients.http_client import get
from tests.support.cluster.daemons import INIT
from tests.support.processes.daemon_harness import Daemon
from tickwheel_bench.processes import free_port


def node(number: int, url: str, folder: Path) -> Daemon:
    return Daemon(
        folder / f"node-{number}",
        log_level="info",
        cluster=url,
        node=number,
        cluster_timeout="2s",
        drain_timeout="100ms",
        listen_port=free_port(),
        web=True,
        web_port=free_port(),
    )


def is_answered(url: str) -> bool:
    """Whether the topics are listed there; if not, why is said, and that it may be tried again."""
    answer = get(f"{url}/v1/topics")
    if answer.status == 200:
        return True
    problem = msgspec.json.decode(answer.text)
    assert (answer.status, problem["code"], problem["retryable"]) == (503, "not_connected", True)
    return False


def test_the_node_that_serves_answers_and_the_others_say_that_they_do_not(
    topic: Topic, tmp_path: Path
) -> None:
    url = f"kafka://{topic.servers}/{topic.name}"
    assert tickwheel("cluster", "init", url, "--replication-factor", "1", *INIT).returncode == 0
    with ExitStack() as stack:
        nodes = {}
        for number in (1, 2):
            one = stack.enter_context(node(number, url, tmp_path))
            nodes[str(one.wait_for_event("started as a node")["web"])] = one

        def of_owner(but: str = "") -> Callable[[], str | None]:
            return lambda: next((web for web in nodes if web != but and is_answered(web)), None)

        owner = wait(of_owner(), "an answer")
        (follower,) = nodes.keys() - {owner}
        assert not is_answered(follower)
        of_all = ",".join(one.url for one in nodes.values()).replace(",tickwheel://", ",")
        apart = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "tickwheel", "--url", of_all, "web", "--port", "0", "--json"],
                stdout=subprocess.PIPE,
            )
        )
        stack.callback(apart.kill)
        assert apart.stdout is not None
        web = json.loads(apart.stdout.readline())["url"]
        wait(lambda: is_answered(web), "an answer for whichever node serves")
        nodes[owner].kill()
        assert wait(of_owner(but=owner), "an answer of the other node") == follower
        wait(lambda: is_answered(web), "an answer for the other node")
