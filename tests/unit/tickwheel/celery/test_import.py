"""Without Celery: an error that says what to install, and nothing else of Tickwheel is touched."""

from __future__ import annotations

import subprocess
import sys

WITHOUT = """
import sys
class Blocked:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("amqp", "celery", "kombu"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
import tickwheel.sync
try:
    import tickwheel.celery
except ModuleNotFoundError as error:
    print(error)
"""


def test_the_extra_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert "pip install 'tickwheel[celery]'" in done.stdout
