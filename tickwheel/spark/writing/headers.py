"""Headers, a column at a time: maps and JSON texts as MessagePack."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tickwheel.protocol.limits import MAX_HEADERS_BYTES

_NIL = b"\xc0"


def packed_headers(column: Any) -> tuple[Any, npt.NDArray[np.bool_]]:
    """MessagePack maps as ``large_binary``, empty for an empty map, and who has headers that are no map."""
    if pa.types.is_map(column.type):
        return _packed_maps(column), np.zeros(len(column), np.bool_)
    return _packed_json(column)


def _packed_json(column: Any) -> tuple[Any, npt.NDArray[np.bool_]]:
    """Headers are alike as a rule: each text is read once a batch."""
    encoded = column.dictionary_encode()
    packed = [_pack_json(text) for text in encoded.dictionary.to_pylist()]
    places = encoded.indices
    found = pa.array(packed, pa.large_binary()).take(places)
    bad = pa.array([one is None for one in packed], pa.bool_()).take(places).fill_null(False)
    return found, np.asarray(bad)


def _pack_json(text: str) -> bytes | None:
    try:
        parsed = msgspec.json.decode(text)
        if not isinstance(parsed, dict):
            return None
        return msgspec.msgpack.encode(parsed) if parsed else b""
    except (msgspec.MsgspecError, OverflowError, RecursionError):
        return None  # also numbers that MessagePack does not have


def _packed_maps(column: Any) -> Any:
    """What ``msgpack.encode(dict(…))`` of each would give, but made of whole columns."""
    offsets = column.offsets.cast(pa.int64())
    first, last = (offsets[0].as_py(), offsets[-1].as_py()) if len(offsets) else (0, 0)
    names, values = (part.slice(first, last - first) for part in (column.keys, column.items))
    pairs = pc.binary_join_element_wise(*_packed_texts(names), *_packed_texts(values), _empty())
    lists = pa.LargeListArray.from_arrays(pc.subtract(offsets, first), pairs)
    bodies = pc.binary_join(lists, _empty())
    counts = np.diff(np.asarray(offsets))
    heads = pa.array([_map_head(count) for count in range(int(counts.max(initial=0)) + 1)], pa.large_binary())
    packed = pc.binary_join_element_wise(heads.take(pa.array(counts)), bodies, _empty())
    return pc.if_else(column.is_valid(), packed, None)


def _packed_texts(texts: Any) -> tuple[Any, Any]:
    """The head and the bytes of each text; NULL has a head only."""
    lengths = np.asarray(pc.binary_length(texts).fill_null(0), np.int64)
    # Headers that are longer than any head here says are too long in any case.
    heads = _text_heads().take(pa.array(np.minimum(lengths, MAX_HEADERS_BYTES + 1)))
    if texts.null_count:
        heads = pc.if_else(texts.is_valid(), heads, pa.scalar(_NIL, pa.large_binary()))
    return heads, texts.cast(pa.large_binary()).fill_null(b"")


def _empty() -> Any:
    return pa.scalar(b"", pa.large_binary())


@cache
def _text_heads() -> Any:
    return pa.array([_text_head(length) for length in range(MAX_HEADERS_BYTES + 2)], pa.large_binary())


def _text_head(length: int) -> bytes:
    if length < 32:
        return bytes([0xA0 | length])
    return bytes([0xD9, length]) if length < 256 else b"\xda" + length.to_bytes(2)


def _map_head(count: int) -> bytes:
    if count == 0:
        return b""
    if count < 16:
        return bytes([0x80 | count])
    return b"\xde" + min(count, 0xFFFF).to_bytes(2)
