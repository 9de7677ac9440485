"""Archives and reports by Arrow Flight: the same as of the broker's directory, which Spark does not see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from tests.spark.conftest import Pipeline
from tests.support.flight.calling import flight_url
from tests.support.flight.shops import SECRET, fill
from tests.support.processes.daemon_harness import Daemon
from tests.support.processes.guarded import Place
from tests.support.spark.archives import archived, ids_at, work_off
from tickwheel import sync
from tickwheel.errors import Forbidden, LoginRequired
from tickwheel.spark import SourceError, make_report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GRANTS = {
    "archivist": ("query:*", "consume:*", "admin:*"),
    "reader": ("query:*",),
    "without-bodies": ("query:*", "admin:*"),
    "bodies-of-a": ("query:*", "consume:a.*", "admin:*"),
    "reader-of-a": ("query:a.*",),
}


@dataclass(frozen=True)
class Elsewhere:
    """``tokens``: files, by who has them."""

    daemon: Daemon
    owner: str
    tokens: dict[str, Path]

    def words(self, who: str) -> list[str]:
        """Of a command."""
        return ["--url", self.daemon.url, "--token-file", str(self.tokens[who])]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Elsewhere]:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    place, tokens = Place(folder), {}
    for name, grants in GRANTS.items():
        tokens[name] = folder / f"{name}.token"
        tokens[name].write_text(place.create(name, *grants))
        tokens[name].chmod(0o600)
    owner = place.create("owner", "all:*")
    with place.daemon(flight=True, flight_listen="127.0.0.1:0", purge_after="365d") as daemon:
        fill(daemon.url, owner)
        flight_url(daemon)
        yield Elsewhere(daemon, owner, tokens)


@pytest.mark.promise("what-is-archived")
def test_an_archive_from_elsewhere(elsewhere: Elsewhere, pipeline: Pipeline, tmp_path: Path) -> None:
    root = tmp_path / "archive"

    def archive(*words: str, who: str = "archivist") -> dict[str, Any]:
        done = pipeline(
            "archive", *elsewhere.words(who), "--older-than", "0s", "--to", str(root), "--json", *words
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    with sync.Client(elsewhere.daemon.url, token=elsewhere.owner) as client:
        before = {
            row["id"]: row for row in client.query("select * from messages where state = 'acked'").dicts()
        }
        in_place, by_flight = archive("--dry-run"), archive("--dry-run", "--read", "flight")
        assert (in_place.pop("read"), by_flight.pop("read")) == ("in place", "flight")
        for told in (in_place, by_flight):
            told.pop("done_before_ms")
        assert in_place == by_flight
        assert by_flight["messages"] == len(before) == 13
        with pytest.raises(Forbidden, match=r"consume:\*"):
            archive("--read", "flight", who="without-bodies")
        with pytest.raises(Forbidden, match=r"consume:\*"):
            archive("--read", "flight", who="bodies-of-a")
        with pytest.raises(Forbidden, match=r"consume:b\.hidden"):
            archive("--read", "flight", "--topic", "b.hidden", who="bodies-of-a")
        assert not list(tmp_path.rglob("*.parquet"))
        some = archive("--read", "flight", "--topic", "a.x", who="bodies-of-a")
        assert (some["read"], some["messages"], some["dropped"]) == ("flight", 6, 6)
        rest = archive("--read", "flight")
        assert (rest["messages"], rest["dropped"], rest["vanished"]) == (7, 7, 0)
        rows = archived(root)
        assert {row["id"] for row in rows} == set(before)
        for row in rows:
            assert row["body"] == before[row["id"]]["body"]
            assert row["key"] == before[row["id"]]["key"]
        assert not set(ids_at(client)) & set(before)
        assert archive("--read", "flight")["messages"] == 0
        # What is called for again while it is dropped stays, and is not archived twice.
        client.send_many("a.z", [b"a.z 2"] * 5)
        work_off(client, "a.z", 5, "billing")
        assert archive("--read", "flight")["messages"] == 5
    with pytest.raises(SourceError, match="Give one of them"):
        archive("--read", "flight", "--source", str(elsewhere.daemon.directory))


def test_a_report_from_elsewhere(
    spark: SparkSession, elsewhere: Elsewhere, pipeline: Pipeline, tmp_path: Path
) -> None:
    out, expected_out = tmp_path / "report", tmp_path / "expected"
    words = ["report", *elsewhere.words("reader"), "--out", str(out), "--tenant", "header:n", "--json"]
    summary = json.loads(pipeline(*words).stdout)
    expected = make_report(spark, elsewhere.daemon.directory, expected_out, tenant="header:n")
    assert summary["directories"] == [elsewhere.daemon.url]
    for name in ("totals", "lateness", "ack_latency", "nacks", "dead_letters"):
        assert summary[name] == expected[name]
    assert {name: table["rows"] for name, table in summary["tables"].items()} == {
        name: table["rows"] for name, table in expected["tables"].items()
    }
    for name in ("latency_by_topic", "latency_by_group", "nacks", "attempts"):
        mine, theirs = (
            pq.read_table(at / "tables" / f"{name}.parquet").to_pylist() for at in (out, expected_out)
        )
        assert sorted(map(str, mine)) == sorted(map(str, theirs))
    assert "twk_" not in (out / "index.html").read_text()
    token_file = str(elsewhere.tokens["reader-of-a"])
    limited = make_report(spark, elsewhere.daemon.url, tmp_path / "limited", token_file=token_file)
    assert 0 < limited["totals"]["messages"] < summary["totals"]["messages"]
    for path in (tmp_path / "limited").rglob("*"):
        assert path.is_dir() or f"b.{SECRET}".encode() not in path.read_bytes()
    with pytest.raises(LoginRequired):
        make_report(spark, elsewhere.daemon.url, tmp_path / "nobody")
