"""Sessions of Spark, as far as they go without one."""

from __future__ import annotations

import socket
import sys

import pytest

from tickwheel.arrow.errors import SourceError
from tickwheel.spark.errors import SparkError, SparkMissing
from tickwheel.spark.sessions import make_session, needs_java, parse_conf, settings


def test_settings_of_the_command_line() -> None:
    assert parse_conf(["a.b=c=d", "e="]) == {"a.b": "c=d", "e": ""}
    with pytest.raises(SourceError, match=r"'spark\.x' is not a setting of Spark") as caught:
        parse_conf(["spark.x"])
    assert "name=value" in caught.value.advice


def test_a_progress_bar_and_a_quiet_log() -> None:
    chosen = settings(show_progress=True, quiet=True, java_version=17)
    assert chosen["spark.ui.showConsoleProgress"] == "true"
    assert "quiet.log4j2.properties" in chosen["spark.driver.extraJavaOptions"]
    assert "spark.driver.extraJavaOptions" not in settings(show_progress=False, quiet=False, java_version=17)


@pytest.mark.parametrize("master", ["local[2]", "spark://a:7077", "yarn", "k8s://https://a:6443"])
def test_a_driver_of_ours_needs_java(master: str) -> None:
    assert needs_java(master)


def test_a_server_that_does_not_answer_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(SparkError, match=f"No server of Spark Connect answers at sc://127.0.0.1:{port}"):
        make_session(master=f"sc://127.0.0.1:{port}")
    with pytest.raises(SparkError, match="No server of Spark Connect answers"):
        make_session(master="sc://127.0.0.1:many")


def test_an_incomplete_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    # A process of several that run tests has none, which PySpark takes for a run of its own doctests.
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(SparkMissing, match="not complete") as caught:
            make_session(master=f"sc://127.0.0.1:{port}")
    assert caught.value.advice == "pip install 'pyspark[connect]==4.3.*'"
