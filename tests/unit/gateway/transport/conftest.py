"""Each library for HTTP/2 that is there has to pass the same tests."""

from __future__ import annotations

import os

import pytest

from tickwheel_gateway.transport import stacks


def require(name: str) -> None:
    """Skips a test where a library is not there, or fails it where CI_NGHTTP2=required says that it must be."""
    if name not in stacks.available():
        if os.environ.get("CI_NGHTTP2") == "required":
            pytest.fail(f"{name} is required, and was not compiled")
        pytest.skip(f"HTTP/2 by {name} was not compiled: apt-get install libnghttp2-dev, and make")


@pytest.fixture(params=["nghttp2", "h2"])
def stack(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Servers of this test use it."""
    name: str = request.param
    require(name)
    monkeypatch.setenv(stacks.VARIABLE, name)
    return name
