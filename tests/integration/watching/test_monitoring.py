"""The dashboard and the alerts: every metric that they use is there, and Prometheus, where there is one, takes them."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.samples import Sample

from tests.support.clients.http_client import Scraped, get, scrape
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.unit.test_tidy import anchors
from tickwheel import sync
from tickwheel_broker.monitoring.metrics import cluster_families
from tickwheel_broker.sharedlog.standing import Standing

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = ROOT / "deploy" / "grafana-dashboard.json"
RULES = ROOT / "deploy" / "prometheus-rules.yml"
RULE_TESTS = ROOT / "tests" / "support" / "run" / "prometheus-rules.test.yml"
OPERATE = ROOT / "docs" / "how-to" / "operate.md"

NOT_METRICS = {
    *(
        "histogram_quantile",
        "sum",
        "min",
        "max",
        "by",
        "rate",
        "increase",
        "changes",
        "deriv",
        "predict_linear",
    ),
    *("and", "or", "label_values"),
}
OF_PROMETHEUS = {"up"}
UNITS = {"bool_yes_no", "s", "short", "percentunit", "mps", "bytes", "Bps"}
COLUMNS = 24


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """The broker has metrics."""
    return {"http_listen": True, "http_port": 0}


@pytest.fixture(scope="module")
def daemon(daemon: Daemon) -> Daemon:
    """Has a topic and a group, and has looked through its log."""
    with sync.Client(daemon.url) as client:
        client.send_many("t", [b"x"] * 10)
        with client.subscribe("t", "g") as subscription:
            for message in subscription:
                message.ack(confirm=True)
                break
        client.purge()
    return daemon


@pytest.fixture(scope="module")
def url(daemon: Daemon) -> str:
    return str(daemon.wait_for_event("started")["http"])


@pytest.fixture(scope="module")
def found(url: str) -> Scraped:
    return scrape(url)


def of_a_cluster() -> Scraped:
    """What an owner has besides, and a follower."""
    registry = CollectorRegistry()
    metrics = list(cluster_families(Standing("test", 1)))
    metrics += [
        GaugeMetricFamily("tickwheel_cluster_records_behind", "Of a follower."),
        GaugeMetricFamily("tickwheel_cluster_unconfirmed_seconds", "Of the owner."),
        GaugeMetricFamily("tickwheel_cluster_clock_skew_seconds", "Of a follower."),
    ]
    for family in metrics:
        family.samples = family.samples or [Sample(family.name, {}, 0.0)]
    registry.collect = lambda: iter(metrics)  # type: ignore[method-assign]
    return Scraped(generate_latest(registry).decode())


def dashboard() -> dict[str, Any]:
    loaded = json.loads(DASHBOARD.read_text())
    assert isinstance(loaded, dict)
    return loaded


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def expressions() -> list[str]:
    board = dashboard()
    of_panels = [target["expr"] for panel in panels() for target in panel["targets"]]
    of_variables = [v["definition"] for v in board["templating"]["list"] if v["type"] == "query"]
    of_marks = [mark["expr"] for mark in board["annotations"]["list"]]
    return of_panels + of_variables + of_marks + [rule["expr"] for rule in rules()]


def metrics_in(expression: str) -> set[str]:
    """The names of a PromQL expression that are neither functions nor labels nor texts."""
    plain = re.sub(r'"[^"]*"', "", expression)
    plain = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)", "", plain)
    plain = re.sub(r"label_values\((\w+)\s*,\s*\w+\)", r"\1", plain)
    return set(re.findall(r"\b[a-z_:][\w:]*", plain)) - NOT_METRICS


def test_every_metric_that_is_used_exists(found: Scraped) -> None:
    used = set().union(*(metrics_in(expression) for expression in expressions()))
    assert len(used) > 40
    assert used - OF_PROMETHEUS - found.names() - set(of_a_cluster().names()) == set()


def test_every_metric_is_used_or_explained(found: Scraped) -> None:
    """The page has a row for each one."""
    explained = set(re.findall(r"^\| `(tickwheel_\w+)", OPERATE.read_text(), re.MULTILINE))
    names = {
        name if family.type != "counter" else f"{name}_total"
        for name, family in (found.families | of_a_cluster().families).items()
        if name.startswith("tickwheel_")
    }
    assert explained == names


def test_labels_that_are_asked_for_exist(found: Scraped) -> None:
    """Of those that the broker gives: a value that is compared with must be one that there is, at least as 0."""
    values = {
        label: {dict(labels)[label] for _, labels in found.samples if label in dict(labels)}
        for label in ("code", "within", "queue", "level")
    }
    asked = [
        (label, pattern)
        for expression in expressions()
        for label, pattern in re.findall(r'(code|within|queue|level)=~?"([^"]*)"', expression)
    ]
    assert asked
    for label, pattern in asked:
        for choice in pattern.split("|"):
            assert any(re.fullmatch(choice, value) for value in values[label]), (label, choice)


# -- the dashboard -----------------------------------------------------------------------------------------------


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    board = dashboard()
    assert board["schemaVersion"] >= 36
    assert board["uid"] == "tickwheel"
    source, *variables = board["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert [variable["name"] for variable in variables] == ["job", "instance", "topic"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels():
        assert panel["title"], panel["id"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references)) > 0
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert "localhost" not in DASHBOARD.read_text()


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in dashboard()["panels"]]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= COLUMNS for place in places)
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


# -- the alerts --------------------------------------------------------------------------------------------------


def test_each_alert_has_its_section() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) >= 15
    known = anchors(OPERATE)
    for rule in rules():
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert ROOT / page == OPERATE
        assert anchor == rule["alert"].lower()
        assert anchor in known, anchor
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["description"].endswith(".")
    assert {anchor for anchor in known if re.fullmatch(r"tickwheel[a-z]+", anchor)} == {
        name.lower() for name in names
    }


@pytest.fixture(scope="module")
def promtool() -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("there is no promtool (Debian: prometheus)")
    return program


def test_promtool_takes_the_rules(promtool: str) -> None:
    done = subprocess.run(
        [promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout


def test_the_alerts_fire_when_they_should(promtool: str, tmp_path: Path) -> None:
    tests = tmp_path / "rules.test.yml"
    tests.write_text(RULE_TESTS.read_text().replace("RULES", str(RULES)))
    done = subprocess.run(
        [promtool, "test", "rules", str(tests)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_nothing_wrong_with_the_metrics(promtool: str, url: str) -> None:
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=get(f"{url}/metrics").text,
        capture_output=True,
        text=True,
        check=False,
    )
    of_ours = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("tickwheel_")]
    assert of_ours == []
    assert done.returncode in (0, 3), done.stderr  # 3: there are remarks


# -- a real Prometheus -------------------------------------------------------------------------------------------


class Prometheus:
    """Scrapes one broker each second, with the rules loaded."""

    def __init__(self, program: str, directory: Path, target: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        configuration = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {"job_name": "tickwheel", "static_configs": [{"targets": [target.removeprefix("http://")]}]}
            ],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        options = {
            "config.file": directory / "prometheus.yml",
            "storage.tsdb.path": directory / "tsdb",
            "web.listen-address": self.url.removeprefix("http://"),
        }
        command = [program, *(f"--{name}={value}" for name, value in options.items())]
        with open(directory / "prometheus.log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(self, path: str, **query: str) -> Any:
        answer = get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}")
        assert answer.status == 200, answer.text
        return json.loads(answer.text)["data"]

    def wait_for(self, query: str) -> list[Any]:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if found := self._is_ready() and self.ask("query", query=query)["result"]:
                return list(found)
            time.sleep(0.1)
        raise AssertionError(f"nothing came of {query}")

    def _is_ready(self) -> bool:
        try:
            return get(f"{self.url}/-/ready").status == 200
        except OSError:
            assert self.process.poll() is None, "Prometheus ended"
            return False

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)


@pytest.fixture
def prometheus(url: str, tmp_path: Path) -> Iterator[Prometheus]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("there is no Prometheus (Debian: prometheus)")
    running = Prometheus(program, tmp_path, url)
    yield running
    running.stop()


def test_prometheus_scrapes_and_evaluates_everything(prometheus: Prometheus) -> None:
    prometheus.wait_for("count_over_time(tickwheel_ready[1m]) > 2")
    assert prometheus.ask("query", query="up")["result"][0]["value"][1] == "1"
    (group,) = prometheus.ask("rules")["groups"]
    assert {rule["name"]: rule["health"] for rule in group["rules"] if rule["health"] == "err"} == {}
    assert [rule["name"] for rule in group["rules"] if rule["state"] == "firing"] == []
    empty = []
    for panel in panels():
        for target in panel["targets"]:
            query = re.sub(r"\$__rate_interval", "1m", target["expr"]).replace('"$instance"', '".*"')
            query = query.replace('"$topic"', '".*"').replace('"$job"', '".*"')
            if not prometheus.ask("query", query=query)["result"]:
                empty.append(panel["title"])
    assert empty == []
