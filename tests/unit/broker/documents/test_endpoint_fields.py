"""What is wrong with the fields of an endpoint, in words."""

from __future__ import annotations

from typing import Any

import pytest

from tickwheel.protocol.errors import BadEndpoint
from tickwheel_broker.documents.endpoint_fields import merged


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"url": 5}, "url is a whole number, and must be a text."),
        ({"max_in_flight": 0}, "max_in_flight must be at least 1."),
        ({"format": "xml"}, "format is 'xml'. There is binary, structured, plain."),
    ],
)
def test_what_is_wrong_with_a_field_is_told(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(BadEndpoint) as refused:
        merged(None, "hooks", {"topic": "t", "url": "https://shop.example", **fields}, 1)
    assert str(refused.value).startswith(f"The endpoint was not understood: {told}")
