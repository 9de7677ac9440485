"""What tests that share a daemon need."""

from __future__ import annotations

from itertools import count

import pytest

_numbers = count()


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"topic-{next(_numbers)}"
