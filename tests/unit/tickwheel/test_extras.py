"""Without an optional package: an error that says what to install, and nothing else of Tickwheel is touched."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *where):
        return None if name.partition(".")[0] in {packages!r} else self.finder.find_spec(name, *where)

sys.meta_path[:] = map(Without, sys.meta_path)
import tickwheel.sync
from tickwheel.errors import TickwheelError
try:
    {statement}
except TickwheelError as error:
    assert isinstance(error, ImportError)
    print(error.code, error.advice)
"""
COMMAND = """
sys.argv = ["tickwheel", *{words!r}]
from tickwheel_cli.main import main
main()
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("packages", "statement", "extra"),
    [
        (["amqp", "celery", "kombu"], "import tickwheel.celery", "celery"),
        (["dramatiq"], "import tickwheel.dramatiq", "dramatiq"),
        (["taskiq"], "import tickwheel.taskiq", "taskiq"),
        (["django"], "import tickwheel.django", "django"),
        (["sqlalchemy"], "from tickwheel.outbox import MessageTable", "sql"),
        (["sqlalchemy"], "from tickwheel import outbox; outbox.open_database('sqlite://')", "sql"),
        (["opentelemetry"], "import tickwheel.client.tracing", "tracing"),
        (["starlette"], "import tickwheel.web; tickwheel.web.app('tickwheel://127.0.0.1')", "web"),
        (["httpcore2"], "import tickwheel.testing.http; tickwheel.testing.http.SyncPush", "push"),
    ],
)
def test_the_extra_is_named(packages: list[str], statement: str, extra: str) -> None:
    done = run(WITHOUT.format(packages=packages, statement=statement))
    assert done.stdout.startswith("extra_missing "), done.stderr
    assert f"pip install 'tickwheel[{extra}]'" in done.stdout


@pytest.mark.parametrize(
    ("packages", "words", "extra"),
    [
        (["h2", "hpack", "hyperframe", "google"], ["gateway"], "rocketmq"),
        (["httptools"], ["web"], "web"),
        (["httpcore2"], ["push"], "push"),
        (["watchfiles"], ["work", "a:b", "--reload"], "work"),
        (["confluent_kafka"], ["cluster", "status", "kafka://127.0.0.1:9/x"], "cluster"),
        (["celery"], ["bench", "--help"], "celery,dramatiq,rocketmq,spark,sql,web"),
    ],
)
def test_commands_name_the_extra(packages: list[str], words: list[str], extra: str) -> None:
    done = run(WITHOUT.format(packages=packages, statement="pass") + COMMAND.format(words=words))
    assert done.stderr.startswith("error [extra_missing]: "), done.stderr
    assert f"pip install 'tickwheel[{extra}]'" in done.stderr
