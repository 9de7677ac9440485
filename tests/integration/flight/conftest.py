"""A broker with Arrow Flight and tokens, whose topics belong to several owners."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.flight.calling import Caller, defects, flight_url
from tests.support.flight.shops import COUNT, GRANTS, fill
from tests.support.processes.daemon_harness import Daemon
from tests.support.processes.guarded import Place


@dataclass(frozen=True)
class Served:
    """``place``: where its tokens are. ``count``: of the messages that were sent to each topic."""

    daemon: Daemon
    place: Place
    url: str
    tokens: dict[str, str]
    callers: dict[str, Caller]
    count: int = COUNT

    @property
    def all(self) -> Caller:
        """Somebody who may do everything."""
        return self.callers["all"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for the tests of a file; it must not end with a defect that a reader has found."""
    place = Place(tmp_path_factory.mktemp("flight"))
    tokens = {name: place.create(name, *grants) for name, grants in GRANTS.items()}
    with place.daemon(flight=True, flight_listen="127.0.0.1:0") as daemon:
        fill(daemon.url, tokens["all"])
        url = flight_url(daemon)
        callers = {name: Caller(url, token) for name, token in tokens.items()}
        callers["none"] = Caller(url)
        yield Served(daemon, place, url, tokens, callers)
        for caller in callers.values():
            caller.close()


@pytest.fixture
def no_defects(served: Served) -> Iterator[None]:
    """Nothing that a test asks for is a defect of the process."""
    before = len(defects(served.daemon))
    yield
    found = defects(served.daemon)[before:]
    assert not found, found[0]["exception"]
