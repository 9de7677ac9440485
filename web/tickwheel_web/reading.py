"""From bytes to the fields of a request, or a refusal that points at what is wrong."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar, get_args, get_type_hints
from urllib.parse import parse_qsl

import anyio
import msgspec
from starlette.requests import Request

from tickwheel.errors import BadArgument
from tickwheel.protocol.bodies.wording import of_json, placed, worded
from tickwheel.protocol.limits import MAX_TOKEN_CHARS
from tickwheel_web.large.aside import aside
from tickwheel_web.large.pieces import PIECE_BYTES, check_fields
from tickwheel_web.problems import Refused
from tickwheel_web.repeated import repeated_name
from tickwheel_web.shapes import read_other, text_of

S = TypeVar("S", bound=msgspec.Struct)


_UNKNOWN: Final = re.compile(r"unknown field `(?P<name>.*)`", re.DOTALL)
_CONDITIONS: Final = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range")
_TYPING_MISTAKE: Final = 0.6
_DECODERS: Final[dict[type[msgspec.Struct], msgspec.json.Decoder[Any]]] = {}


def media_type(request: Request) -> str:
    """The content type without its parameters; empty: none was given."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def refuse_conditions(request: Request, known: Iterable[str]) -> None:
    """A request that changes something, with a condition at which nobody looks, changes nothing. ``known``: the headers
    that the endpoint reads. Raises BadArgument."""
    if request.method in ("GET", "HEAD"):
        return
    read = {name.lower() for name in known}
    for name in _CONDITIONS:
        if name.lower() in request.headers and name.lower() not in read:
            raise BadArgument(
                f"{request.method} {request.url.path} knows no {name}.",
                advice="Leave it out. Nothing was changed.",
            )


def need_media_type(request: Request, allowed: Sequence[str]) -> str:
    """Raises Refused (415)."""
    found = media_type(request)
    if found not in allowed:
        raise other_type(found, f"Use {' or '.join(allowed)}.", allowed)
    return found


def other_type(found: str, advice: str, allowed: Sequence[str]) -> Refused:
    """The refusal (415) of a content type; empty: none was given."""
    return Refused(
        415,
        "unsupported_media_type",
        f"The content type is {found or 'not given'}. {advice}",
        headers={"Accept": ", ".join(allowed)},
    )


async def read_body(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    """The body of a request. Raises Refused (408, 413, 415)."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(
            415,
            "unsupported_encoding",
            "The body is compressed. Send it as it is.",
            headers={"Accept-Encoding": ""},
        )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 18 or int(length) > max_bytes):
        raise _too_large(request, max_bytes)
    parts, size_bytes = [], 0
    try:
        with anyio.fail_after(timeout_s):
            has_more = True
            while has_more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, "incomplete_request", "The body ended too early.")
                part, has_more = message.get("body", b""), message.get("more_body", False)
                size_bytes += len(part)
                if size_bytes > max_bytes:
                    raise _too_large(request, max_bytes)
                parts.append(part)
    except TimeoutError:
        raise Refused(
            408,
            "request_too_slow",
            f"The body did not arrive within {timeout_s:g} s. Nothing was done; send it again.",
            headers={"Connection": "close"},
        ) from None
    return b"".join(parts)


def _too_large(request: Request, max_bytes: int) -> Refused:
    """The server goes on reading, and forgets what it reads: hanging up on a client that still writes would take the
    answer away from it. One that waits for leave to write does not write."""
    return Refused(
        413,
        "request_too_large",
        f"The body has more than {max_bytes:,} bytes. Send less at a time, or raise web_max_request_bytes.",
        headers={"Connection": "close"} if "expect" in request.headers else None,
    )


def decode(kind: type[S], data: bytes | msgspec.Raw, at: str = "") -> S:
    """A body of JSON. ``at``: the pointer of what it is a part of. Raises Refused (400)."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.json.Decoder(kind, dec_hook=read_other)
    if len(bytes(data)) > PIECE_BYTES:
        check_fields(kind, bytes(data), at)
    try:
        found: S = decoder.decode(data)
        name = repeated_name(bytes(data))
    except msgspec.ValidationError as error:
        raise _invalid(kind, str(error), at) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, "bad_json", of_json(error), pointer=at) from None
    if name is not None:
        raise Refused(400, "bad_json", f"{name!r} stands twice in one object.", pointer=at)
    return found


async def decode_large(kind: type[S], data: bytes) -> S:
    """The same for bodies that may be large, which are decoded while others are served."""
    return decode(kind, data) if len(data) <= PIECE_BYTES else await aside(decode, kind, data)


def query(kind: type[S], request: Request) -> S:
    """The query parameters. Raises Refused (400)."""
    given: dict[str, str] = {}
    parameters = request.scope["query_string"].decode("latin-1")
    for name, value in parse_qsl(parameters, keep_blank_values=True, errors="surrogateescape"):
        text_of(name, "A parameter's name", "?")
        if name in given:
            raise Refused(400, "bad_argument", f"{name} is given twice.", pointer=f"?{name}")
        given[name] = text_of(value, name, f"?{name}")
    return converted(kind, given)


def converted(kind: type[S], given: Mapping[str, str]) -> S:
    """Query parameters that were read. Raises Refused (400)."""
    try:
        return msgspec.convert(given, kind, strict=False, dec_hook=read_other)
    except msgspec.ValidationError as error:
        raise _invalid(kind, str(error), "?") from None


def _inner(kind: type[msgspec.Struct], path: str) -> type[msgspec.Struct]:
    """The shape at a place within another one, as far as its fields lead."""
    for name in re.findall(r"\.(\w+)", path):
        kind = next(_structs(get_type_hints(kind).get(name)), kind)
    return kind


def _structs(hint: object) -> Iterator[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for part in get_args(hint):
        yield from _structs(part)


def _invalid(kind: type[msgspec.Struct], message: str, at: str) -> Refused:
    """What msgspec has found, as a pointer and a sentence."""
    what, path = placed(message)
    pointer = at + re.sub(r"[.\[]", "/", path).replace("]", "")
    if at == "?":
        pointer = pointer.replace("/", "")
    slash = "" if at == "?" else "/"
    unknown = _UNKNOWN.search(what)
    if unknown is None:
        fault = worded(kind, what, path)
        return Refused(
            400,
            "bad_argument",
            fault.detail,
            pointer=f"?{fault.missing}" if at == "?" and fault.missing else pointer,
        )
    names = _inner(kind, path).__struct_encode_fields__
    near = difflib.get_close_matches(unknown["name"], names, n=1, cutoff=_TYPING_MISTAKE)
    advice = f"Did you mean {near[0]}?" if near else f"There are {', '.join(names) or 'none'}."
    return Refused(
        400,
        "unknown_field",
        f"There is no field {unknown['name']!r}. {advice}",
        pointer=f"{pointer}{slash}{unknown['name']}",
    )


def header_text(value: str) -> str:
    """The value of a header, which the server reads byte by byte: UTF-8, as most clients write it, or Latin-1."""
    try:
        return value if value.isascii() else value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value


def idempotency_key(request: Request) -> str | None:
    """The key that a message has that says none itself; None: none. It may stand in quotation marks."""
    given = request.headers.get("idempotency-key")
    if given is None:
        return None
    if len(given) > 1 and given[0] == given[-1] == '"':
        given = given[1:-1]
    return header_text(given)


def token(request: Request) -> str:
    """The bearer token; empty: none. Raises Refused (401)."""
    given = request.headers.get("authorization", "")
    kind, _, found = given.partition(" ")
    found = found.strip()
    if not given:
        return ""
    if kind.lower() != "bearer" or not found or not found.isascii() or len(found) > MAX_TOKEN_CHARS:
        raise Refused(
            401,
            "login_required",
            "The header Authorization is no bearer token. Send Authorization: Bearer twk_…",
            headers={"WWW-Authenticate": 'Bearer realm="tickwheel"'},
        )
    return found


def address(request: Request) -> str:
    """Of who asks; ``unknown`` where the server tells none, as on a Unix socket."""
    return "unknown" if request.client is None else _written(request.client.host)


@lru_cache(maxsize=1_024)
def _written(address: str) -> str:
    """The one way to write it."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return "unknown"
