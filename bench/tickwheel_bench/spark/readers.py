"""Readers of whole tables by Arrow Flight, a process of its own, until its standard input ends. It says when each has
read a batch, and at the end how many rows all have read: python -m tickwheel_bench.spark.readers URL COUNT

Readers stand for other machines: they take what the broker's machine leaves them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Sequence
from typing import Final

import tickwheel.arrow

_NICENESS: Final = 19


class Reader:
    """Reads the table of messages again and again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_over = threading.Event()
        self.has_begun = threading.Event()
        self.rows = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            with tickwheel.arrow.messages(self._url) as batches:
                for batch in batches:
                    self.rows += batch.num_rows
                    self.has_begun.set()
                    if self._is_over.is_set():
                        return

    def stop(self) -> None:
        """Ends it after the batch that it reads."""
        self._is_over.set()
        self._thread.join(60)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("count", type=int)
    given = parser.parse_args(arguments)
    os.nice(_NICENESS)
    readers = [Reader(given.url) for _ in range(given.count)]
    for one in readers:
        if not one.has_begun.wait(60):
            raise SystemExit("a reader has read nothing within a minute")
    print(json.dumps({"readers": given.count}), flush=True)
    before = sum(one.rows for one in readers)
    sys.stdin.read()
    read = sum(one.rows for one in readers) - before
    for one in readers:
        one.stop()
    print(read, flush=True)


if __name__ == "__main__":
    main()
