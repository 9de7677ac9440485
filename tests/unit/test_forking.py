"""A forked program is like one that was started anew."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.clients import forking
from tests.support.clients.forking import Forked, Programs
from tickwheel_bench.processes import is_gone, wait_until

MODULES = ("json",)
PROGRAM = """
import json, os, signal, sys
told = {
    "arguments": sys.argv,
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "name": __name__,
    "input": sys.stdin.read(),
    "files": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],  # without that of the folder itself
    "ctrl-c": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "children": signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL,
    "blocked": [*signal.pthread_sigmask(signal.SIG_BLOCK, ())],
}
print(json.dumps(told, sort_keys=True))
"""


def end_of(code: str, *arguments: str) -> int:
    return forking.start(code, *arguments, modules=MODULES).wait(60)


def test_it_has_what_a_new_process_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TICKWHEEL_ANYTHING", "set")
    (tmp_path / "input").write_text("given")
    told = []
    for name in ("new", "forked"):
        with open("input") as given, open(name, "w") as output:
            if name == "new":
                command = [sys.executable, "-c", PROGRAM, "one", "two"]
                subprocess.run(command, env=os.environ, stdin=given, stdout=output, check=True)
            else:
                files = given.fileno(), output.fileno(), 2
                assert forking.start(PROGRAM, "one", "two", modules=MODULES, files=files).wait(60) == 0
        told.append(Path(name).read_text())
    anew, forked = map(json.loads, told)
    assert forked == anew


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("", 0),
        ("import sys; sys.exit(7)", 7),
        ("import os; os._exit(65)", 65),
        ("import sys; sys.stderr = open('/dev/null', 'w'); 1 / 0", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import os; os.abort()", -signal.SIGABRT),
    ],
)
def test_it_tells_how_it_ended(code: str, expected: int) -> None:
    assert end_of(code) == expected


def test_it_takes_signals_and_is_waited_for() -> None:
    program = "import os, sys, time; os.write(1, b'ready'); time.sleep(600)"
    with Programs(program, modules=MODULES) as programs:
        one, other = programs.start(), programs.start()
        assert one.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            one.wait(0.01)
        one.terminate()
        assert one.wait() == one.poll() == one.returncode == -signal.SIGTERM
        one.kill()  # it has ended: nothing happens
        assert one.returncode == -signal.SIGTERM
        assert other.poll() is None
    assert other.returncode == -signal.SIGKILL


def test_several_end_in_any_order() -> None:
    def waiting(code: int) -> Forked:
        return forking.start(f"import sys; sys.exit({code})", modules=MODULES)

    started = [waiting(code) for code in range(20)]
    assert [one.wait(60) for one in reversed(started)] == list(reversed(range(20)))


def test_a_program_that_is_never_ready_says_how_it_ended() -> None:
    with (
        Programs("import sys; sys.exit(5)", modules=MODULES) as programs,
        pytest.raises(AssertionError, match="it ended with 5"),
    ):
        programs.start()


def test_modules_are_imported_before() -> None:
    asked = "import sys; sys.exit('colorsys' in sys.modules)"
    assert forking.start(asked, modules=("colorsys",)).wait(60) == 1
    assert end_of(asked) == 0


def test_what_forks_is_started_again_when_it_has_ended() -> None:
    modules = ("graphlib",)
    parent = "import os, sys; os.write(1, b'%d' % os.getppid())"
    ours, its = os.pipe()
    assert forking.start(parent, modules=modules, files=(0, its, 2)).wait(60) == 0
    os.close(its)
    with open(ours) as output:
        server = int(output.read())
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: is_gone(server), lambda: f"{server} is still there")
    assert forking.start("", modules=modules).wait(60) == 0
