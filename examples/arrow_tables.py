"""Tables of a broker as Arrow batches, without Spark. Run: python examples/arrow_tables.py (needs
pip install 'tickwheel[flight]')

Starts a broker with Arrow Flight; with a URL, such as tickwheel://broker:7411, it reads one that runs.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pyarrow.compute as pc

import tickwheel.arrow
from tickwheel import sync
from tickwheel.errors import NotConnected

OPTIONS = ("--listen-port=0", "--unix-socket=", "--flight", "--flight-listen=127.0.0.1:0")


@contextmanager
def broker() -> Iterator[str]:
    """A broker in a process of its own, on any free port: its URL."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "tickwheel", "serve", "--data", directory, "--json", *OPTIONS]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            try:
                yield json.loads(process.stdout.readline())["urls"][0]
            finally:
                process.terminate()


def fill(url: str) -> None:
    """A thousand reminders for each of three days."""
    first = datetime(2031, 5, 1, 9, tzinfo=UTC)
    times = [first + timedelta(days=number % 3) for number in range(3_000)]
    with sync.Client(url) as client:
        client.send_many("reminders", [b"tea"] * 3_000, deliver_at=times)


def due_by_day(url: str) -> dict[str, int]:
    """How many messages are due on which day; only two columns of what waits travel."""
    waiting = [("state", "=", "scheduled"), ("deliver_at", "<", "2031-05-03T00:00:00Z")]
    with tickwheel.arrow.messages(url, columns=["topic", "deliver_at"], filters=waiting) as reader:
        counts = pc.value_counts(pc.strftime(reader.read_all()["deliver_at"], "%Y-%m-%d"))
    return {str(each["values"]): each["counts"].as_py() for each in counts}


def report(url: str) -> None:
    """Arrow Flight is there a moment after the broker."""
    while True:
        try:
            days = due_by_day(url)
            break
        except NotConnected:
            continue
    for day, count in sorted(days.items()):
        print(f"{day}: {count}")


def main() -> None:
    """Reads the broker of a URL, or one of its own."""
    if len(sys.argv) > 1:
        report(sys.argv[1])
        return
    with broker() as url:
        fill(url)
        report(url)


if __name__ == "__main__":
    main()
