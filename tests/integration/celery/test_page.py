"""The page on Celery, as it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import tickwheel.sync
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel.celery.transport.options import CLIENT_OPTIONS, Options, options_of

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "celery.md"


def test_the_programs_of_the_page(daemon: Daemon, tmp_path: Path) -> None:
    """The two files of a reader, in a process that knows of Tickwheel only what they import."""
    app, send, options = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for file, text in {"shop.py": app, "send.py": send}.items():
        assert text.startswith(f"# {file}\n")
        (tmp_path / file).write_text(text.replace("tickwheel://127.0.0.1:7411", daemon.url))
    subprocess.run([sys.executable, "send.py"], cwd=tmp_path, check=True, timeout=PATIENCE_S)
    revoke = "from shop import app, remind; print(app.control.revoke(remind.apply_async((20,), countdown=3600).id))"
    told = subprocess.run(
        [sys.executable, "-c", revoke], cwd=tmp_path, check=True, timeout=PATIENCE_S, capture_output=True
    )
    assert b"cancelled" in told.stdout
    with tickwheel.sync.Client(daemon.url) as client:
        topic = client.topic("celery")
        assert (topic.ready, topic.scheduled) == (1, 2)
        client.cancel_where("celery")
    conf = SimpleNamespace()
    exec(compile(options, str(PAGE), "exec"), {"app": SimpleNamespace(conf=conf)})
    assert options_of(conf.broker_transport_options).publish == "pipelined"


def test_the_page_names_every_option_with_its_default() -> None:
    rows = dict(re.findall(r"^\| (`.*?`) \| (.*?) \|", PAGE.read_text(), re.MULTILINE))
    named = {name for cell in rows for name in re.findall(r"`(\w+)`", cell)}
    own = set(Options.__struct_fields__) - {"client"}
    assert own | set(CLIENT_OPTIONS) <= named
    assert rows["`reconnect_timeout`"] == f"{Options().reconnect_timeout:g}"
    assert rows["`transient_expires`"] == f"{Options().transient_expires:g}"
