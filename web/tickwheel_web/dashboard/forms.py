"""Forms: their fields, what was typed into them as values, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

from tickwheel.errors import BadArgument, TickwheelError
from tickwheel.protocol.limits import MAX_ID
from tickwheel.protocol.moments import parse_moment
from tickwheel.protocol.units import parse_duration_ms
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.problems import Refused, detail_of, status_of

T = TypeVar("T")


class Wrong(BadArgument):
    """What is wrong with which fields, so that it can be said beside them."""

    def __init__(self, **fields: str) -> None:
        super().__init__(" ".join(fields.values()), advice="")
        self.fields = fields


@dataclass(frozen=True)
class Field:
    """One of a form."""

    name: str
    label: str
    parse: Callable[[str], Any] = str
    """What was typed, as a value. Raises ValueError, TickwheelError, Refused."""
    hint: str = ""
    _: KW_ONLY
    kind: str = "text"
    """As of ``<input>``; or area, which has lines."""
    choices: Mapping[str, str] = field(default_factory=dict)
    """Texts by values, where it is one of several."""
    is_required: bool = False
    may_unset: bool = False
    """Left empty, it is as if it had never been given."""
    is_list: bool = False
    """Of words with spaces between them, which the command has one by one."""
    option: str | None = ""
    """Of the command; empty: that of its name; None: it has none."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Other attributes of its element."""


class Filled(NamedTuple):
    """A form as a page shows it."""

    fields: Mapping[str, Field]
    given: Mapping[str, str]
    wrong: Mapping[str, str]
    """By the names of fields; empty: about none of them."""
    status: int


class Form:
    """Its fields in order. ``about``: which of them errors of the broker are about, by their codes."""

    def __init__(self, *fields: Field, about: Mapping[str, str] | None = None) -> None:
        self.fields = {one.name: one for one in fields}
        self._about = about or {}

    def given(self, viewed: Viewed) -> dict[str, str]:
        """What was typed. Browsers send the ends of lines as CRLF, whatever they were."""
        texts = {name: viewed.form.get(name, [""])[-1].replace("\r\n", "\n") for name in self.fields}
        return {
            name: text if self.fields[name].kind == "area" else text.strip() for name, text in texts.items()
        }

    def read(self, given: Mapping[str, str], names: Iterable[str] | None = None) -> dict[str, Any]:
        """The values of what was not left empty. Raises Wrong, for all that is."""
        found: dict[str, Any] = {}
        wrong: dict[str, str] = {}
        for name in self.fields if names is None else names:
            if not given[name]:
                if self.fields[name].is_required:
                    wrong[name] = "It is needed."
                continue
            try:
                found[name] = checked(name, self.fields[name].parse, given[name])
            except Wrong as error:
                wrong |= error.fields
        if wrong:
            raise Wrong(**wrong)
        return found

    def options(self, given: Mapping[str, str], before: Mapping[str, str] | None = None) -> list[str]:
        """Of the command that does the same: what differs from before."""
        words: list[str] = []
        unset: list[str] = []
        for name, one in self.fields.items():
            text, old = given.get(name, ""), (before or {}).get(name, "")
            if one.option is None or text == old:
                continue
            option = one.option or f"--{name.replace('_', '-')}"
            if "/" in option:
                words.append(option.split("/")[0 if text else 1])
            elif text:
                words += [
                    word for part in (text.split() if one.is_list else [text]) for word in (option, part)
                ]
            elif one.may_unset:
                unset += ["--unset", option.removeprefix("--")]
        return words + unset

    def unset(self, values: Mapping[str, Any]) -> list[str]:
        """Those that were left empty, and count as never given."""
        return [name for name, one in self.fields.items() if one.may_unset and name not in values]

    def filled(self, given: Mapping[str, str], error: TickwheelError | None = None) -> Filled:
        """As it is shown, perhaps with what is wrong."""
        texts = {name: given.get(name, "") for name in self.fields}
        if error is None:
            return Filled(self.fields, texts, {}, 200)
        wrong = (
            error.fields if isinstance(error, Wrong) else {self._about.get(error.code, ""): detail_of(error)}
        )
        return Filled(self.fields, texts, wrong, status_of(error))


def checked(name: str, parse: Callable[..., T], *given: Any) -> T:
    """The value of a field. Raises Wrong."""
    try:
        return parse(*given)
    except Wrong:
        raise
    except TickwheelError as error:
        raise Wrong(**{name: detail_of(error)}) from None
    except Refused as error:
        raise Wrong(**{name: error.detail}) from None
    except (ValueError, OverflowError) as error:
        raise Wrong(**{name: f"{str(error).removesuffix('.')}."}) from None


def whole(text: str, what: str = "It", least: int = 0, most: int = MAX_ID) -> int:
    """Raises BadArgument.

    >>> whole("17", "The priority", most=255)
    17
    """
    if text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most:
        return int(text)
    bounds = f"from {least} to {most:,}" if most < MAX_ID else f"{least} or more"
    raise BadArgument(f"{what} is no whole number.", advice=f"Use one {bounds}.")


def duration(text: str) -> timedelta:
    """Raises ValueError, OverflowError."""
    return timedelta(milliseconds=parse_duration_ms(text))


def each(parse: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Of words with spaces between them."""
    return lambda text: [parse(one) for one in text.split()]


def headers(text: str) -> dict[str, str]:
    """Raises ValueError.

    >>> headers("a: b:c\\n\\n d :")
    {'a': 'b:c', 'd': ''}
    """
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise ValueError("Write each on a line of its own, as name: value")
        found[name.strip()] = value.strip()
    return found


def zone(name: str) -> ZoneInfo:
    """Raises ValueError."""
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # of a folder, or of a name that no file can have
        raise ValueError(f"There is no time zone {name!r}; write it like Europe/Berlin, or UTC") from None


def moment_in(text: str, clock: ZoneInfo) -> datetime:
    """With its offset, or on the clock of the zone. Raises ValueError."""
    try:
        found = parse_moment(text)
        found = found if found.tzinfo else found.replace(tzinfo=clock)
        again = found.astimezone(UTC).astimezone(found.tzinfo)
    except (ValueError, OverflowError):
        raise ValueError("This is no time; write it like 2031-05-01T09:00, in its zone, or with Z") from None
    if again.replace(fold=0) != found.replace(fold=0):
        raise ValueError("There is no such time in this zone: clocks are put forward over it")
    return found
