"""Which tests of the clients are run twice."""

from __future__ import annotations

from collections.abc import Iterator

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
    """All tests of a file go one way, and then all go the other one."""
    if metafunc.module.__name__.rpartition(".")[2] in BOTH_WAYS:
        metafunc.parametrize("way_of_sends", both_ways.WAYS, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def way_of_sends(request: pytest.FixtureRequest) -> Iterator[None]:
    """How sends of the blocking client go; where tests are not run twice, as they go outside of tests. A broker of a
    file asks for it, to be another one for each way."""
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(request, "param"):
            both_ways.choose(request.param, patch)
        yield
