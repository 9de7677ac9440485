"""Arrays as C sees them: no copy is made, so they must be contiguous and of numbers of the right size."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tickwheel_native._native import ffi

UInt8s: TypeAlias = npt.NDArray[np.uint8]
UInt16s: TypeAlias = npt.NDArray[np.uint16]
UInt32s: TypeAlias = npt.NDArray[np.uint32]
UInt64s: TypeAlias = npt.NDArray[np.uint64]
Int64s: TypeAlias = npt.NDArray[np.int64]
#: Of ``tw_run``.
Runs: TypeAlias = npt.NDArray[np.void]
#: A ``tw_store``, and what C works on beside it.
Store: TypeAlias = Any
_RUN_BYTES: Final = ffi.sizeof("tw_run")


def uint8s(array: UInt8s | bytes | bytearray | memoryview) -> Any:
    return ffi.from_buffer("uint8_t[]", array)


def uint32s(array: UInt32s) -> Any:
    assert array.itemsize == 4
    return ffi.from_buffer("uint32_t[]", array)


def uint64s(array: UInt64s) -> Any:
    assert array.itemsize == 8
    return ffi.from_buffer("uint64_t[]", array)


def int64s(array: Int64s) -> Any:
    assert array.itemsize == 8
    return ffi.from_buffer("int64_t[]", array)


def runs(array: Runs) -> Any:
    assert array.itemsize == _RUN_BYTES
    return ffi.from_buffer("tw_run[]", array)


def dtype_of(kind: str) -> np.dtype[Any]:
    """A structure of the headers as numpy has it: the same fields at the same places."""
    found: np.dtype[Any] = np.dtype(_dtype(ffi.typeof(kind)))
    return found


def _dtype(kind: Any) -> Any:
    """What numpy makes a type of."""
    if kind.kind == "struct":
        names, fields = zip(*kind.fields, strict=True)
        formats, offsets = [_dtype(field.type) for field in fields], [field.offset for field in fields]
        return {"names": names, "formats": formats, "offsets": offsets, "itemsize": ffi.sizeof(kind)}
    if kind.kind != "array":
        return kind.cname.removesuffix("_t")
    if kind.item.cname == "char":
        return f"S{kind.length}"
    shape = [kind.length]
    while (kind := kind.item).kind == "array":
        shape.append(kind.length)
    return np.dtype(_dtype(kind)), tuple(shape)
