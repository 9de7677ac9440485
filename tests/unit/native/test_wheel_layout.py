"""The wheel's structures have the bytes that Python expects."""

from __future__ import annotations

import pytest

from tickwheel_native import ffi, lib
from timerlog.wheel.native_core import LAST_DUE_MS, NEVER, WHEEL_DTYPE
from timerlog.wheel.timer_log import TIMER_DTYPE

LAYOUTS = [("tw_timer", TIMER_DTYPE), ("tw_wheel", WHEEL_DTYPE)]


@pytest.mark.parametrize(("name", "dtype"), LAYOUTS)
def test_fields_are_where_the_dtype_says(name: str, dtype) -> None:
    offsets = {field: ffi.offsetof(name, field) for field, _ in ffi.typeof(name).fields}
    assert offsets
    assert {field: dtype.fields[field][1] for field in offsets} == offsets
    assert dtype.itemsize == ffi.sizeof(name)


def test_constants() -> None:
    assert lib.tw_wheel_bytes() == WHEEL_DTYPE.itemsize
    assert lib.TW_WHEEL_NEVER == NEVER
    assert lib.TW_WHEEL_LAST_DUE_MS == LAST_DUE_MS
