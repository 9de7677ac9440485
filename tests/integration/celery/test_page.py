"""The page on Celery, as it is written."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tickwheel.sync
from tests.integration.daemon_harness import Daemon
from tickwheel.celery.transport.options import CLIENT_OPTIONS, Options, options_of

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "celery.md"


def test_the_programs_of_the_page(daemon: Daemon) -> None:
    """Two programs of a reader, one behind the other, with the broker's own port."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    around: dict[str, Any] = {"__name__": "shop", "datetime": datetime, "UTC": UTC}
    for block in blocks[:2]:
        exec(compile(block.replace("tickwheel://127.0.0.1:7411", daemon.url), str(PAGE), "exec"), around)
    with around["app"], tickwheel.sync.Client(daemon.url) as client:
        topic = client.topic("celery")
        assert (topic.ready, topic.scheduled) == (1, 2)
        client.cancel_where("celery")
    exec(compile(blocks[2], str(PAGE), "exec"), around)
    assert options_of(around["app"].conf.broker_transport_options).publish == "pipelined"


def test_the_page_names_every_option_with_its_default() -> None:
    rows = dict(re.findall(r"^\| (`.*?`) \| (.*?) \|", PAGE.read_text(), re.MULTILINE))
    named = {name for cell in rows for name in re.findall(r"`(\w+)`", cell)}
    own = set(Options.__struct_fields__) - {"client"}
    assert own | set(CLIENT_OPTIONS) <= named
    assert rows["`reconnect_timeout`"] == f"{Options().reconnect_timeout:g}"
    assert rows["`transient_expires`"] == f"{Options().transient_expires:g}"
