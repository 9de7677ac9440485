"""The figures under the live displays: what the broker was given, and what each group got so far."""

from __future__ import annotations

import numpy as np
from rich.table import Table
from rich.text import Text

from tickwheel_cli.demo.ledger import GroupBook, Ledger


def given_line(ledger: Ledger) -> Text:
    """`737 scheduled · 412 rescheduled · 3 cancelled`."""
    scheduled = len(ledger.promised_ms)
    return Text.assemble(
        (f"{scheduled:,}", "bold"),
        " scheduled · ",
        (f"{ledger.rescheduled:,}", "bold"),
        " rescheduled · ",
        (f"{scheduled - ledger.expected():,}", "bold"),
        " cancelled",
    )


def lateness_text(book: GroupBook) -> str:
    """`p50 0.6 ms  p99 1.9 ms  max 3.0 ms` of the latest arrivals, or nothing yet."""
    lateness_ms = book.recent_lateness_ms()
    if not len(lateness_ms):
        return ""
    p50, p99, top = np.percentile(lateness_ms, [50, 99, 100])
    return f"p50 {p50:.1f} ms  p99 {p99:.1f} ms  max {top:.1f} ms"


def group_table(ledger: Ledger) -> Table:
    """A row for each group: delivered of expected, and lateness."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold cyan")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name, book in ledger.books.items():
        table.add_row(
            name, f"{book.count:,} of {ledger.expected():,} delivered", f"late {lateness_text(book)}"
        )
    return table
