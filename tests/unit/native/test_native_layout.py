"""C, the twins and the storage engine agree on every structure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.twins.store import dtype_of
from timerlog import layout

LAYOUTS = [
    ("tw_row", layout.ROW),
    ("tw_run", layout.RUN),
    ("tw_arrival", layout.ARRIVAL),
    ("tw_delivery", layout.DELIVERY),
]


@pytest.mark.parametrize(("name", "dtype"), LAYOUTS)
def test_fields_are_where_the_engine_expects_them(name: str, dtype: np.dtype[Any]) -> None:
    described = dtype_of(name)
    assert described.itemsize == dtype.itemsize
    assert dict(described.fields or {}) == dict(dtype.fields or {})


def test_a_pointer_and_an_array_in_a_structure() -> None:
    topic = dtype_of("tw_topic")
    assert topic["arrivals"] == np.dtype("<u8")
    assert topic["lane_first"].shape == (256,)
