"""The wheel's structures have the bytes that Python expects."""

from __future__ import annotations

import pytest

from tickwheel_native import ffi
from tickwheel_native.wheel import BLOCK_BITS, CROWDS, LAST_DUE_MS, LEVELS, NEVER, SLOTS, STRANDS
from timerlog.wheel.native_core import WHEEL_DTYPE
from timerlog.wheel.timer_log import TIMER_DTYPE

LAYOUTS = [("tw_timer", TIMER_DTYPE), ("tw_wheel", WHEEL_DTYPE)]


@pytest.mark.promise("R16", "R17")
@pytest.mark.parametrize(("name", "dtype"), LAYOUTS)
def test_fields_are_where_the_dtype_says(name: str, dtype) -> None:
    offsets = {field: ffi.offsetof(name, field) for field, _ in ffi.typeof(name).fields}
    assert offsets
    assert {field: dtype.fields[field][1] for field in offsets} == offsets
    assert dtype.itemsize == ffi.sizeof(name)


def test_constants() -> None:
    assert NEVER == (1 << 63) - 1
    assert LAST_DUE_MS == (4096 << 36) - 1
    assert (LEVELS, BLOCK_BITS, SLOTS, STRANDS, CROWDS) == (4, 12, 8192, 6, 64)
