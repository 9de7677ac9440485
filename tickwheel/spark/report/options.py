"""What a report is made of: the options, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, TypeAlias

from tickwheel.arrow.options import secret_files
from tickwheel.spark.report.earlier import Earlier, read_earlier
from tickwheel.spark.report.errors import ReportError

TenantKind: TypeAlias = Literal["header", "key-prefix", "order-key"]
Step: TypeAlias = Literal["second", "minute", "hour", "day"]
#: The steps of time that a report may have, in milliseconds.
STEPS_MS: Final[dict[Step, int]] = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
DEFAULT_TENANT: Final = "key-prefix:/"
DEFAULT_TOP: Final = 50
MAX_TOP: Final = 10_000
#: A chart with more steps than these cannot be read.
_MANY_STEPS: Final = 200
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Tenant:
    """How the tenant of a message is found: the header of a name, what stands in its key before a separator (``value``
    is the name or the separator), or its ordering key."""

    kind: TenantKind
    value: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.value}" if self.value else self.kind


@dataclass(frozen=True, slots=True)
class Period:
    """From ``since_ms`` up to, but not, ``until_ms``; epoch milliseconds, None: without a bound."""

    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What to report on. ``directories``: also the URLs of brokers with `tickwheel flight`. ``step`` None: the finest
    that a chart can show. ``target_p99_ms``: so late may 99 of 100 first deliveries be; None: nothing is said about
    that. ``earlier``: what to compare it with. The files of token and CA are on each machine that has tasks."""

    directories: tuple[str, ...]
    period: Period
    tenant: Tenant
    step: Step | None
    top: int
    committed: bool
    target_p99_ms: int | None = None
    earlier: Earlier | None = None
    token_file: str | None = None
    ca_file: str | None = None

    @property
    def places(self) -> list[dict[str, str]]:
        """Each as options of the data source."""
        by_url = secret_files(self.token_file, self.ca_file)
        return [{"url": one, **by_url} if is_url(one) else {"path": one} for one in self.directories]


def is_url(place: str) -> bool:
    """Whether it names a broker, and no directory."""
    return "://" in place


def report_options(
    directories: Sequence[str | Path] | str | Path,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    tenant: str = DEFAULT_TENANT,
    by: str = "auto",
    top: int = DEFAULT_TOP,
    committed: bool = True,
    target_p99: timedelta | None = None,
    compare: str | Path | None = None,
    token_file: str | None = None,
    ca_file: str | None = None,
    fs: Mapping[str, str] | None = None,
) -> ReportOptions:
    """``directories``: or URLs of brokers. ``fs``: options of where ``compare`` is, if that is no directory. Raises
    ``ReportError``, ``EarlierRefused``, ``StorageError``."""
    listed = [directories] if isinstance(directories, str | Path) else list(directories)
    if not listed:
        raise ReportError("No data directory is named.", advice="Name one or more, or URLs of brokers.")
    period = Period(_epoch_ms(since, "since"), _epoch_ms(until, "until"))
    if period.since_ms is not None and period.until_ms is not None and period.since_ms >= period.until_ms:
        raise ReportError("The period ends before it begins.", advice="Let since be earlier than until.")
    if not 1 <= top <= MAX_TOP:
        raise ReportError(f"{top} is no number of rows to list.", advice=f"Use 1 to {MAX_TOP:,}.")
    return ReportOptions(
        directories=tuple(one if is_url(one) else str(Path(one).absolute()) for one in map(str, listed)),
        period=period,
        tenant=parse_tenant(tenant),
        step=_parse_step(by),
        top=top,
        committed=committed,
        target_p99_ms=_target_ms(target_p99),
        earlier=None if compare is None else read_earlier(compare, fs or {}),
        token_file=token_file,
        ca_file=ca_file,
    )


def parse_tenant(text: str) -> Tenant:
    """Raises ``ReportError``.

    >>> parse_tenant("key-prefix::")
    Tenant(kind='key-prefix', value=':')
    >>> parse_tenant("header:customer")
    Tenant(kind='header', value='customer')
    """
    kind, _, value = text.partition(":")
    if kind == "order-key" and not value:
        return Tenant("order-key")
    if kind == "header" and value:
        return Tenant("header", value)
    if kind == "key-prefix" and value:
        return Tenant("key-prefix", value)
    raise ReportError(
        f"{text!r} does not say how a tenant is found.",
        advice="Use header:NAME, key-prefix:SEPARATOR or order-key.",
    )


def choose_step(span_ms: int) -> Step:
    """The finest step that cuts a span of time into no more pieces than a chart can show.

    >>> choose_step(45_000), choose_step(86_400_000)
    ('second', 'hour')
    """
    for name, step_ms in STEPS_MS.items():
        if span_ms // step_ms < _MANY_STEPS:
            return name
    return "day"


def _parse_step(by: str) -> Step | None:
    if by == "auto":
        return None
    for name in STEPS_MS:
        if by == name:
            return name
    raise ReportError(f"There is no step {by!r}.", advice=f"Use auto, {', '.join(STEPS_MS)}.")


def _target_ms(target: timedelta | None) -> int | None:
    if target is None:
        return None
    target_ms = target // timedelta(milliseconds=1)
    if target_ms < 1:
        raise ReportError(
            f"A target of {target_ms} ms cannot be met: times are measured in whole milliseconds.",
            advice="Use 1 ms or more.",
        )
    return target_ms


def _epoch_ms(moment: datetime | None, name: str) -> int | None:
    if moment is None:
        return None
    if moment.utcoffset() is None:
        raise ReportError(f"{name} does not say its UTC offset.", advice="Use an aware datetime.")
    return -((_EPOCH - moment) // timedelta(milliseconds=1))
