"""What follows from the tables and is kept in memory alone: lanes, counters, chains of redelivery, ordering keys."""

from __future__ import annotations

from tickwheel_native import rebuild
from timerlog.errors import DamagedLog
from timerlog.tables.tables import Tables


def derive(tables: Tables, *, keys_are_kept: bool) -> None:
    """Makes it anew. ``keys_are_kept``: the key index is as the tables are. Raises ``DamagedLog``."""
    native = tables.native
    tables.find_empty_rows()
    native.keeps_keys = False  # from here on who appends a message enters its key
    if not rebuild.topics(native):
        raise DamagedLog("a topic names a message that the log does not hold")
    for group_id in tables.groups:
        rebuild.group(native, group_id)
        tables.find_orders(group_id)
    if not keys_are_kept or tables.keys.is_worn:
        find_keys(tables)


def find_keys(tables: Tables) -> None:
    """Makes the key index anew."""
    native = tables.native
    tables.keys.clear()
    result, at, partition = rebuild.keys(native, int(native.first_id), tables.next_id)
    while result == rebuild.NEED_KEYS:
        tables.keys.grow(partition)
        result, at, partition = rebuild.keys(native, at, tables.next_id)
