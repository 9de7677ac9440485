"""`tickwheel cluster` with what leads nowhere: one line says what is wrong, one what to do, and the exit code is 2."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.native.driver import NOW_MS, SMALL
from tickwheel_bench.processes import free_port
from tickwheel_cli.main import root
from tickwheel_cli.running import cluster
from timerlog.store import Store

URL = "kafka://127.0.0.1:9092/orders"
PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def log() -> Iterator[None]:
    """Of a process of its own: what the commands say of it stays with the test."""
    logger = logging.getLogger("tickwheel.broker")
    before = logger.handlers[:]
    yield
    logger.handlers[:] = before


def run(*words: str) -> Result:
    return CliRunner().invoke(root, ["cluster", *words])


@pytest.mark.parametrize("command", ["init", "status"])
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:9092/orders", "is no address of a cluster; write it like kafka://"),
        ("kafka://127.0.0.1:9092", "is no address of a cluster"),
        ("kafka://127.0.0.1/orders", "is no host:port of a Kafka broker"),
        ("kafka://127.0.0.1:9092,b/orders", "'b' in"),
        ("kafka://127.0.0.1:99999/orders", "is no host:port of a Kafka broker"),
        ("kafka://127.0.0.1:9092/", "is no name of a cluster"),
        ("kafka://127.0.0.1:9092/-b", "is no name of a cluster"),
    ],
)
def test_what_is_no_address(command: str, url: str, said: str) -> None:
    refused = run(command, url)
    assert refused.exit_code == 2
    (line,) = [line for line in refused.stderr.splitlines() if line.startswith("Error: ")]
    assert said in line


@pytest.mark.parametrize("command", ["init", "status"])
def test_no_kafka_at_the_address(command: str) -> None:
    pytest.importorskip("confluent_kafka")
    server = f"127.0.0.1:{free_port()}"
    refused = run(command, f"kafka://{server}/orders", *(["--wait", "0s"] if command == "init" else []))
    assert refused.exit_code == 69
    what, advice = refused.stderr.splitlines()
    assert what.startswith(f"error [cluster_unreachable]: No Kafka answers at {server}: ")
    assert "Check the addresses" in advice


@pytest.mark.parametrize("command", ["init", "status"])
def test_a_setting_that_the_client_of_kafka_does_not_know(command: str, tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    options = tmp_path / "kafka.properties"
    options.write_text("no.such.setting=1\n")
    refused = run(command, URL, "--kafka-config", str(options))
    assert refused.exit_code == 78
    what, _ = refused.stderr.splitlines()
    assert what.startswith("error [bad_config]: kafka_config: ")
    assert "no.such.setting" in what
    missing = run(command, URL, "--kafka-config", str(tmp_path / "none"), "--json")
    assert (missing.exit_code, json.loads(missing.stderr)["error"]["code"]) == (78, "bad_config")


@pytest.mark.parametrize("command", ["init", "status"])
def test_without_the_extra_it_says_how_to_get_it(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.startswith("tickwheel_broker.sharedlog.kafka")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [one for one in sys.modules if one.partition(".")[0] == "confluent_kafka"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    refused = run(command, URL)
    assert refused.exit_code == 1
    what, advice = refused.stderr.splitlines()
    assert what == "error [extra_missing]: A cluster needs confluent_kafka, which is not installed."
    assert advice == "Install it: pip install 'tickwheel[cluster]'."


def test_a_node_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = run("drain", "node1:7412")
    assert (refused.exit_code, "is no address of a node's HTTP listener" in refused.stderr) == (2, True)
    assert run("drain", "http://127.0.0.1:99999").exit_code == run("drain", "http:node1").exit_code == 2
    monkeypatch.setenv("TICKWHEEL_TOKEN", "secret")
    refused = run("drain", "http://node1:7412")
    assert refused.stderr.startswith("error [token_needs_tls]: "), refused.stderr
    monkeypatch.delenv("TICKWHEEL_TOKEN")
    refused = run("drain", "http://127.0.0.1:7412", "--for", "2h")
    assert (refused.exit_code, "--for must be" in refused.stderr) == (2, True)
    refused = run("drain", f"http://127.0.0.1:{free_port()}")
    assert (refused.exit_code, refused.stderr.startswith("error [not_connected]: ")) == (69, True)
    both = run("status", URL, "--data", str(tmp_path))
    assert (both.exit_code, run("status").exit_code) == (2, 2)
    assert "give the cluster's URL, or a node's directory" in both.stderr


class _Slow(BaseHTTPRequestHandler):
    """A node that has not handed over in time, or does not answer at all."""

    def do_POST(self) -> None:
        if not self.path.startswith("/silent"):
            self.send_response(503)
            self.end_headers()
            self.wfile.write(b"The node has begun to hand over: check Kafka.\n")
        elif self.server.patience.wait(PATIENCE_S):  # type: ignore[attr-defined]
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def test_a_drain_that_is_not_done_says_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Slow) as server:
        server.patience = threading.Event()  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        refused = run("drain", url)
        assert refused.exit_code == 1
        what, advice = refused.stderr.splitlines()
        assert what == "error [not_drained]: The node has begun to hand over: check Kafka."
        assert "cluster status" in advice
        monkeypatch.setattr(cluster, "_ANSWER_S", 0.2)
        silent = run("drain", f"{url}/silent")
        assert (silent.exit_code, silent.stderr.startswith("error [not_drained]: ")) == (1, True), (
            silent.stderr
        )
        assert "It may have begun to hand over" in silent.stderr
        server.patience.set()  # type: ignore[attr-defined]
        server.shutdown()


def test_segments_that_no_frame_fits_into(tmp_path: Path) -> None:
    refused = run("init", URL, "--segment-bytes", "8MiB", "--wait", "1ms")
    assert (refused.exit_code, "must be at least 9437184" in refused.stderr) == (78, True), refused.stderr


def test_what_a_cluster_cannot_begin_with(tmp_path: Path) -> None:
    """It is refused before Kafka is asked for anything: there is none here."""
    pytest.importorskip("confluent_kafka")
    store = Store.open(tmp_path / "used", SMALL, NOW_MS)
    in_use = run("init", URL, "--from", str(tmp_path / "used"))
    assert (in_use.exit_code, "error [locked]" in in_use.stderr) == (76, True)
    store.close()
    other_size = run("init", URL, "--from", str(tmp_path / "used"), "--segment-bytes", "64MiB")
    assert (other_size.exit_code, "keeps the size of its segments" in other_size.stderr) == (78, True)
    (tmp_path / "empty").mkdir()
    none = run("init", URL, "--from", str(tmp_path / "empty"))
    assert (none.exit_code, "is not a data directory" in none.stderr) == (78, True)
    no_kafka = f"kafka://127.0.0.1:{free_port()}/orders"
    whole = run("init", no_kafka, "--from", str(tmp_path / "used"), "--wait", "0s")
    assert (whole.exit_code, "error [cluster_unreachable]" in whole.stderr) == (69, True), whole.stderr
    Store.open(tmp_path / "used", SMALL, NOW_MS).close()  # it was not given away
