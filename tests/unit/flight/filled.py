"""A data directory with messages in several topics and states, for readers of tables."""

from __future__ import annotations

from pathlib import Path

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.stores.queried import send_all
from tests.support.stores.reader import Reader
from tickwheel.arrow.event_table import all_events, read_event_batches
from tickwheel.arrow.message_table import MessagesPart, read_messages
from tickwheel.arrow.places import describe
from timerlog.readers.events import EVENTS
from timerlog.store import Store

TOPICS = ("a.orders", "a.mails", "b.orders")
COUNT = 60


def fill(directory: Path) -> None:
    """`COUNT` messages in each topic; those of the first are read by two groups."""
    store = Store.open(directory, SMALL, NOW_MS)
    for name in TOPICS:
        topic = store.topics.open(name, NOW_MS)
        readers = [Reader(store, topic, group) for group in ("billing", "audit")[: 1 + (name == TOPICS[0])]]
        numbers = range(COUNT)
        send_all(
            store=store,
            topic_id=topic,
            bodies=[b"%s %d" % (name.encode(), n) for n in numbers],
            times_ms=[NOW_MS + 100 * n for n in numbers],
            keys=[b"key-%d" % n if n % 3 else b"" for n in numbers],
            headers=[b"\x81\xa1a\x01" if n % 2 else b"" for n in numbers],
            now_ms=NOW_MS,
        )
        pump(store, NOW_MS + 3_000)
        receipts = readers[0].fetch(12, now_ms=NOW_MS + 3_000)
        readers[0].ack(*receipts[:8])
        readers[0].nack(*receipts[8:10], delay_ms=900_000_000_000, error=f"no {name}")
    store.close()


def in_place(directory: Path, table: str, columns: list[str], now_ms: int) -> list[dict[str, object]]:
    """All rows of a table, read from the files without rights and tickets."""
    offline = describe(directory, now_ms)
    if table == "messages":
        batches = [*read_messages(offline, MessagesPart(0, 1, offline.description.next_id), columns, [])]
    else:
        wanted = frozenset(EVENTS)
        batches = [
            batch
            for part in all_events([offline])
            for batch in read_event_batches(offline, part, columns, [], wanted)
        ]
    return [row for batch in batches for row in batch.to_pylist()]
