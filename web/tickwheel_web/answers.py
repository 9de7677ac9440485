"""Answers that are made of the client's objects: each field is named once, and has its type from the object.

A class says which fields an answer has, and where the answer differs from the object::

    @answer(tickwheel.Endpoint, fields=("name", "url", "timeout", "created_at"), nullable=("url",))
    class Endpoint(Answer):
        "An endpoint."

    Endpoint.of(found)

A field is the attribute of its name; `created_at` is the attribute `created`. Moments become RFC 3339, durations texts
as in settings, and the ids of messages decimal texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from operator import attrgetter
from types import MappingProxyType, UnionType
from typing import Any, ClassVar, Final, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from tickwheel.protocol.units import format_duration
from tickwheel_web.shapes import Id, Moment

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_MS: Final = timedelta(milliseconds=1)
_UNIONS: Final = (Union, UnionType)
_BODY: Final[tuple[tuple[str, Any, Any], ...]] = (
    ("body", msgspec.Raw | UnsetType, UNSET),
    ("text", str | UnsetType, UNSET),
    ("base64", str | UnsetType, UNSET),
)
_Convert = Callable[[Any], Any]


class Answer(msgspec.Struct, frozen=True):
    """A part of an answer; see `answer`."""

    _read: ClassVar[Mapping[str, _Convert]] = _NOTHING

    @classmethod
    def of(cls, found: Any, **more: Any) -> Self:
        """The answer that says what an object of the client does; `more`: fields that the object lacks."""
        return cls(**{name: read(found) for name, read in cls._read.items()}, **more)


_A = TypeVar("_A", bound=Answer)


def answer(
    model: type,
    *,
    fields: tuple[str, ...],
    nullable: tuple[str, ...] = (),
    sources: Mapping[str, str] = _NOTHING,
    kinds: Mapping[str, Any] = _NOTHING,
    computed: Mapping[str, tuple[Any, _Convert]] = _NOTHING,
    given: Mapping[str, Any] = _NOTHING,
    has_body: bool = False,
) -> Callable[[type[_A]], type[_A]]:
    """Makes a class the answer about objects of `model`, with these `fields`, in this order.

    `nullable`: null where the value is empty or 0. `sources`: attributes of other names. `kinds`: types that say more
    than the attributes' types. `computed`: types of fields that no attribute has, and how to get them. `given`: types
    of fields that `of` is given. `has_body`: also the three forms of a message's body, of which `of` is given one.
    Raises TypeError for an attribute that the model lacks.
    """
    types: dict[str, Any] = {}
    read: dict[str, _Convert] = {}
    for name in fields:
        if name in given:
            types[name] = given[name]
        elif name in computed:
            types[name], read[name] = computed[name]
        else:
            source = sources.get(name) or _attribute(model, name)
            hint = _hint(model, source)
            kind = kinds.get(name) or (Id if name == "id" else _shown(hint))
            types[name] = kind | None if name in nullable else kind
            read[name] = _reading(source, _conversion(hint, kind), is_nullable=name in nullable)

    def made(declared: type[_A]) -> type[_A]:
        return msgspec.defstruct(  # type: ignore[return-value]
            declared.__name__,
            [*types.items(), *(_BODY if has_body else ())],
            bases=(declared,),
            namespace={"__doc__": declared.__doc__, "_read": read},
            module=declared.__module__,
            frozen=True,
        )

    return made


def _attribute(model: type, field: str) -> str:
    return field if hasattr(model, field) else field.removesuffix("_at")


def _hint(model: type, attribute: str) -> Any:
    """The type of a field or a property. Raises TypeError."""
    found = getattr(model, attribute, None)
    if isinstance(found, property):
        return get_type_hints(found.fget)["return"]
    hints = get_type_hints(model)
    if attribute not in hints:
        raise TypeError(f"{model.__name__} has no {attribute!r}.")
    return hints[attribute]


def _shown(hint: Any) -> Any:
    """The type of a field of JSON whose attribute has this type."""
    if hint is datetime:
        return Moment
    if hint is timedelta:
        return str
    if get_origin(hint) is list:
        return list[_shown(get_args(hint)[0])]  # type: ignore[misc]
    if get_origin(hint) in _UNIONS:
        return Union[tuple(map(_shown, get_args(hint)))]  # noqa: UP007
    return hint


def _conversion(hint: Any, kind: Any) -> _Convert | None:
    """How an attribute of a type becomes a field of a type; None: it is the field."""
    if kind is Id:
        return str
    if hint is timedelta:
        return _duration
    if isinstance(kind, type) and issubclass(kind, Answer):
        return kind.of
    inner = [each for each in get_args(hint) if each is not type(None)]
    shown = [each for each in get_args(kind) if each is not type(None)] or [kind]
    if get_origin(hint) is list:
        each = _conversion(inner[0], shown[0])
        return None if each is None else lambda values: [each(value) for value in values]
    if get_origin(hint) in _UNIONS and len(inner) == 1:
        only = _conversion(inner[0], shown[0])
        return None if only is None else lambda value: None if value is None else only(value)
    return None


def _reading(source: str, convert: _Convert | None, *, is_nullable: bool) -> _Convert:
    read = attrgetter(source)
    if convert is None:
        return (lambda found: read(found) or None) if is_nullable else read
    if is_nullable:
        return lambda found: convert(value) if (value := read(found)) else None
    return lambda found: convert(read(found))


def _duration(length: timedelta) -> str:
    return format_duration(length // _MS)
