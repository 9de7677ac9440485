"""Which tests of the clients are run twice."""

from __future__ import annotations

import pytest

from tests.support.clients import both_ways

BOTH_WAYS = {
    "test_sync_endings",
    "test_several_threads",
    "test_forks",
    "test_green_threads",
    "test_short_way",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in BOTH_WAYS:
        metafunc.parametrize("_way_of_sends", both_ways.WAYS, indirect=True)


@pytest.fixture(autouse=True)
def _way_of_sends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way that sends of the blocking client go; where a test is not run twice, what is usual outside of tests."""
    if hasattr(request, "param"):
        both_ways.choose(request.param, monkeypatch)
