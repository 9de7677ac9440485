"""The charts, as SVG that stands in the page: no program, no network, and colours that follow the page's own.

They are drawn by matplotlib in colours that stand for names; these become the page's variables, so that one picture is
light and dark. Texts stay texts. Nothing here touches matplotlib's global figures.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tickwheel._moments import datetime_of
from tickwheel.spark.report.text import duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: What is drawn in which colour; each is replaced by the property of that name in ``tickwheel/look.css``.
COLOURS: Final = {
    "text": "#010101", "muted": "#010102", "line": "#010103", "raised": "#010104",
    "line-1": "#010111", "line-2": "#010112", "line-3": "#010113", "line-4": "#010114", "line-5": "#010115",
    "strong-line": "#010116",
}  # fmt: skip
SERIES: Final = ("line-1", "line-2", "line-3", "line-4", "line-5", "strong-line")
DELIVERIES: Final = "deliveries"
_WIDTH_IN: Final = 10.0
_STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none", "font.size": 10.5, "text.parse_math": False, "axes.unicode_minus": False,
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"],
    "text.color": COLOURS["text"], "axes.labelcolor": COLOURS["muted"], "axes.edgecolor": COLOURS["line"],
    "xtick.color": COLOURS["line"], "ytick.color": COLOURS["line"],
    "xtick.labelcolor": COLOURS["muted"], "ytick.labelcolor": COLOURS["muted"],
    "grid.color": COLOURS["line"], "axes.grid": True, "axes.axisbelow": True, "grid.linewidth": 0.7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "ytick.major.size": 0, "xtick.major.size": 3, "legend.frameon": False, "timezone": "UTC",
    "figure.facecolor": "none", "axes.facecolor": "none",
}  # fmt: skip
_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000
_LABELS: Final = 9
_ROUND_MS: Final = (
    *(seconds * 1_000 for seconds in (1, 2, 5, 10, 15, 30)), *(minutes * _MINUTE_MS for minutes in (1, 2, 5, 10,
    15, 30)), *(hours * _HOUR_MS for hours in (1, 2, 3, 6, 12)), *(days * _DAY_MS for days in (1, 2, 7, 14, 30, 91, 182,
    365, 3650)),
)  # fmt: skip


class _Line(NamedTuple):
    """How a percentile is drawn: told apart by colour, by form and by width."""

    name: str
    label: str
    colour: str
    width: float
    style: str
    marker: str
    layer: float


#: p99 is on top: often it lies on the slowest.
_LINES: Final = (
    _Line(
        name="p50_ms",
        label="half are no {worse} (p50)",
        colour="line-1",
        width=1.4,
        style="-",
        marker="o",
        layer=3.1,
    ),
    _Line(
        name="p99_ms",
        label="99 % are no {worse} (p99)",
        colour="line-3",
        width=2.2,
        style="-",
        marker="D",
        layer=3.2,
    ),
    _Line(name="max_ms", label="{worst}", colour="line-5", width=1.2, style=":", marker="|", layer=3.0),
)


def _lines(counted: str) -> list[_Line]:
    """With their words: deliveries are late, acks are slow."""
    words = {"worse": "later", "worst": "latest"}
    if counted != DELIVERIES:
        words = {"worse": "slower", "worst": "slowest"}
    return [one._replace(label=one.label.format_map(words)) for one in _LINES]


def latency_over_time(
    rows: Sequence[Mapping[str, Any]], step_ms: int, counted: str, target_ms: int | None = None
) -> str:
    """Percentiles of one measure by time, and below how many there were. Where nothing was measured the lines are
    broken and the ground is shaded."""
    with _drawn(f"time-{counted}", 4.3) as (figure, out):
        above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (3, 1.1)})
        # Numbers, and not dates: then the labels say as much as each step of time needs.
        times = [row["time_ms"] / step_ms + 0.5 for row in rows]
        found = gaps([row["time_ms"] for row in rows], step_ms)
        for line in _lines(counted):
            _broken_line(above, line, times, [row[line.name] for row in rows])
        if found:
            spans = [(since_ms / step_ms, (until_ms - since_ms) / step_ms) for since_ms, until_ms in found]
            for axis in (above, below):
                label = f"no {counted}" if axis is above else None
                axis.broken_barh(
                    spans, (0, 1), transform=axis.get_xaxis_transform(), color=COLOURS["raised"], zorder=0,
                    label=label, linewidth=0,
                )  # fmt: skip
        if target_ms is not None:
            label = f"target {duration(target_ms)}"
            above.axhline(target_ms, color=COLOURS["text"], linewidth=1.1, linestyle="--", label=label)
        _scale_of_durations(above.yaxis, above, [*(row["max_ms"] for row in rows), target_ms or 0], "y")
        _legend(above)
        below.bar(times, [row["count"] for row in rows], width=0.9, color=COLOURS["line-1"], alpha=0.75)
        below.set_ylabel(counted)
        _counts(below, "y")
        below.grid(axis="x", visible=False)
        above.tick_params(axis="x", length=0)
        _time_axis(below, rows, step_ms)
    return out[0]


def gaps(times_ms: Sequence[int], step_ms: int) -> list[tuple[int, int]]:
    """From when to when there is nothing between steps that have something.

    >>> gaps([0, 1_000, 4_000], 1_000)
    [(2000, 4000)]
    """
    return [(one + step_ms, next_one) for one, next_one in pairwise(times_ms) if next_one > one + step_ms]


def _broken_line(axis: Axes, line: _Line, times: Sequence[float], values: Sequence[int]) -> None:
    """Not drawn across steps that have no value; a value between two such steps is a point."""
    xs: list[float] = []
    ys: list[float] = []
    alone: list[int] = []
    for number, (time, value) in enumerate(zip(times, values, strict=True)):
        begins = number == 0 or time - times[number - 1] > 1.5
        ends = number + 1 == len(times) or times[number + 1] - time > 1.5
        if begins and xs:
            xs.append(math.nan)
            ys.append(math.nan)
        if begins and ends:
            alone.append(len(xs))
        xs.append(time)
        ys.append(value)
    axis.plot(
        xs, ys, color=COLOURS[line.colour], label=line.label, linewidth=line.width, linestyle=line.style,
        marker="o", markersize=4, markevery=alone, zorder=line.layer,
    )  # fmt: skip


def _time_axis(axis: Axes, rows: Sequence[Mapping[str, Any]], step_ms: int) -> None:
    """At most ten labels at round times, each with what tells it from its neighbours; the date where one day is all."""
    first, last = rows[0]["time_ms"], rows[-1]["time_ms"] + step_ms
    size_ms = next(size for size in _ROUND_MS if (last - first) / size <= _LABELS or size == _ROUND_MS[-1])
    marks = range(-(-first // size_ms) * size_ms, last + 1, size_ms)
    is_one_day = datetime_of(first).date() == datetime_of(last - 1).date()
    form = "%H:%M:%S" if size_ms < _MINUTE_MS else "%H:%M"
    if size_ms >= _DAY_MS:
        form = "%Y-%m-%d"
    elif not is_one_day:
        form = f"%m-%d {form}"
    axis.set_xticks([mark / step_ms for mark in marks], [datetime_of(mark).strftime(form) for mark in marks])
    axis.set_xlabel(f"{datetime_of(first):%Y-%m-%d}, UTC" if is_one_day else "UTC")
    axis.set_xlim(first / step_ms - 0.5, last / step_ms + 0.5)


def distribution(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> str:
    """How many took how long, for each measure, in classes that grow with the time."""
    edges = sorted({row["from_ms"] for row in rows})
    with _drawn("distribution", 3.1) as (figure, out):
        axes = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for axis, (measure, title), colour in zip(axes, names.items(), SERIES, strict=False):
            counts = {row["from_ms"]: row["count"] for row in rows if row["measure"] == measure}
            axis.bar(
                range(len(edges)), [counts.get(one, 0) for one in edges], width=0.86, color=COLOURS[colour]
            )
            axis.set_title(title, loc="left", fontsize=10.5, color=COLOURS["text"])
            every = max(1, -(-len(edges) // 8))
            axis.set_xticks(range(0, len(edges), every), [edge(one) for one in edges[::every]])
            axis.set_xlabel("at least")
            axis.grid(axis="x", visible=False)
            _counts(axis, "y")
        axes[0].set_ylabel("messages")
    return out[0]


def edge(edge_ms: int) -> str:
    """The least of a class: `5 ms`, or `early`"""
    return "early" if edge_ms < 0 else duration(edge_ms)


def spread_by_name(
    rows: Sequence[Mapping[str, Any]], labels: Sequence[str], salt: str, target_ms: int | None = None
) -> str:
    """Median, p99 and greatest lateness of each name, one line each, the first at the top."""
    with _drawn(f"spread-{salt}", 0.85 + 0.34 * len(rows)) as (figure, out):
        axis = figure.subplots()
        places = range(len(rows))
        axis.hlines(
            places, [row["p50_ms"] for row in rows], [row["max_ms"] for row in rows],
            color=COLOURS["line"], linewidth=3,
        )  # fmt: skip
        for line in _lines(DELIVERIES):
            axis.scatter(
                [row[line.name] for row in rows], places, color=COLOURS[line.colour], label=line.label, s=42,
                marker=line.marker, zorder=line.layer,
            )  # fmt: skip
        if target_ms is not None:
            label = f"target {duration(target_ms)}"
            axis.axvline(target_ms, color=COLOURS["text"], linewidth=1.1, linestyle="--", label=label)
        axis.set_yticks(places, labels)
        axis.tick_params(axis="y", labelcolor=COLOURS["text"])
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.grid(axis="y", visible=False)
        _scale_of_durations(axis.xaxis, axis, [*(row["max_ms"] for row in rows), target_ms or 0], "x")
        _legend(axis)
    return out[0]


def stacked(
    series: Mapping[str, Sequence[float]], labels: Sequence[str], x_label: str, y_label: str, salt: str
) -> str:
    """Bars of several parts: ``series`` has a value for each label."""
    with _drawn(f"stacked-{salt}", 2.9) as (figure, out):
        axis = figure.subplots()
        bottoms = [0.0] * len(labels)
        for (name, values), colour in zip(series.items(), SERIES, strict=False):
            axis.bar(range(len(labels)), values, bottom=bottoms, color=COLOURS[colour], label=name,
                     width=min(0.86, 0.12 * len(labels)))  # fmt: skip
            bottoms = [below + value for below, value in zip(bottoms, values, strict=True)]
        every = max(1, -(-len(labels) // 16))
        axis.set_xticks(range(0, len(labels), every), labels[::every])
        axis.set_xlim(-0.7, max(len(labels), 4) - 0.3)
        axis.set_xlabel(x_label)
        axis.set_ylabel(y_label)
        axis.set_ylim(0, max(bottoms) * 1.1)
        axis.grid(axis="x", visible=False)
        _counts(axis, "y")
        _legend(axis)
    return out[0]


def _scale_of_durations(scaled: Any, axis: Axes, largest: Sequence[int], which: str) -> None:
    """0 and 1 ms, and from there in powers of ten where there is much between."""
    top = max([*largest, 1])
    if top > 50:
        scaled._set_axes_scale("symlog", linthresh=1, linscale=0.4)
        powers = [10**power for power in range(16) if 10**power <= top * 3]
        scaled.set_ticks([0, *powers])
    # A little below 0, so that what is at 0 does not lie on the labels.
    limits = (-0.25, top * 1.6) if top > 50 else (-0.02 * top, top * 1.1)
    if which == "x":
        axis.set_xlim(*limits)
    else:
        axis.set_ylim(*limits)
    scaled.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))
    scaled.set_minor_locator(mpl.ticker.NullLocator())


def _counts(axis: Axes, which: str) -> None:
    scaled = axis.yaxis if which == "y" else axis.xaxis
    scaled.set_major_locator(MaxNLocator(nbins=4, integer=True))
    scaled.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _legend(axis: Axes) -> None:
    """Above the axes, where it covers nothing."""
    axis.legend(
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=6, borderaxespad=0, handlelength=1.4, fontsize=10
    )


@contextmanager
def _drawn(salt: str, height_in: float) -> Iterator[tuple[Figure, list[str]]]:
    """A figure to draw on; afterwards the list holds it as SVG. The salt keeps the ids of several apart."""
    out: list[str] = []
    style: dict[Any, Any] = {**_STYLE, "svg.hashsalt": f"tickwheel-{salt}"}
    with mpl.rc_context(style):
        figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
        yield figure, out
        file = io.StringIO()
        with warnings.catch_warnings():
            # Of scripts that this font does not have. The browser draws the texts, and has.
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            figure.savefig(
                file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
            )
    out.append(_for_page(file.getvalue()))


def _for_page(svg: str) -> str:
    """Without the head of a file, as wide as the page, in its colours and font."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", svg)
    for name, colour in COLOURS.items():
        svg = re.sub(rf"\b(fill|stroke): {colour}\b", rf"\1: var(--{name})", svg)
    return svg
