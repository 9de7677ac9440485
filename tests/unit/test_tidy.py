"""The house style, checked over the real tree: who imports whom, small modules, true links."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import tickwheel
from tests.support.run.evidence import anchor

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "tickwheel_native",
    "timerlog",
    "tickwheel_broker",
    "tickwheel",
    "tickwheel_cli",
    "tickwheel_bench",
    "tickwheel_flight",
    "tickwheel_gateway",
    "tickwheel_push",
    "tickwheel_simulation",
    "tickwheel_web",
)
FOLDERS = (
    "native",
    "timerlog",
    "broker",
    "tickwheel",
    "cli",
    "bench",
    "flight",
    "gateway",
    "push",
    "simulation",
    "web",
)
MAX_MODULE_LINES = 700
MAX_FUNCTION_LINES = 70

# Who may be longer, and why. An entry that is no longer needed fails too.
LONG_MODULES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}

PUBLIC = {f"tickwheel.{name}" for name in tickwheel.__all__}

# A place in the tree, and which of our own packages it may import besides itself. The longest match counts.
# Why some may look at the engine itself: docs/decisions/006-who-else-imports-the-engine.md.
MAY_IMPORT: dict[str, set[str]] = {
    "tickwheel_native": set(),
    "timerlog": {"tickwheel_native"},
    "tickwheel_broker": {"timerlog", "tickwheel_native", "tickwheel.protocol"},
    "tickwheel.protocol": {"tickwheel_native"},
    "tickwheel": set(),
    # A send that is alone is written and read in C.
    "tickwheel.blocking.short_way": {"tickwheel", "tickwheel_native"},
    "tickwheel.__main__": {"tickwheel_cli"},
    "tickwheel._embedded": {"tickwheel", "tickwheel_broker"},
    "tickwheel.testing": {"tickwheel", "tickwheel_broker", "tickwheel_push"},
    "tickwheel.web": {"tickwheel", "tickwheel_web"},
    "tickwheel.arrow": {"tickwheel", "timerlog"},
    "tickwheel.spark": {"tickwheel", "timerlog"},
    "tickwheel.outbox.schedule": {"tickwheel", "timerlog"},
    "tickwheel_cli": {"tickwheel", "tickwheel_broker"},
    "tickwheel_cli.looking.inspect": {"tickwheel_cli", "tickwheel", "tickwheel_broker", "timerlog"},
    "tickwheel_cli.beside.web": {"tickwheel_cli", "tickwheel", "tickwheel_broker", "tickwheel_web"},
    "tickwheel_cli.beside.gateway": {
        "tickwheel_cli",
        "tickwheel",
        "tickwheel_broker",
        "tickwheel_gateway",
    },
    "tickwheel_cli.beside.flight": {"tickwheel_cli", "tickwheel", "tickwheel_broker", "tickwheel_flight"},
    "tickwheel_cli.beside.push": {"tickwheel_cli", "tickwheel", "tickwheel_broker", "tickwheel_push"},
    "tickwheel_cli.running.simulate": {"tickwheel_cli", "tickwheel", "tickwheel_simulation"},
    "tickwheel_cli.running.backup": {"tickwheel_cli", "tickwheel", "tickwheel_broker", "timerlog"},
    "tickwheel_cli.running.repair": {"tickwheel_cli", "tickwheel", "tickwheel_broker", "timerlog"},
    "tickwheel_cli.running.cluster": {"tickwheel_cli", "tickwheel", "tickwheel_broker", "timerlog"},
    "tickwheel_bench": {"tickwheel", "tickwheel_broker"},
    "tickwheel_bench.storage.takeover": {"tickwheel_bench", "tickwheel", "timerlog"},
    "tickwheel_bench.storage.wheel": {"tickwheel_bench", "timerlog"},
    "tickwheel_bench.rocketmq.h2load": {"tickwheel_gateway.wire"},
    "tickwheel_bench.web.dashboard": {"tickwheel_bench", "tickwheel", "tickwheel_web"},
    "tickwheel_bench.rocketmq.idle_clients": {"tickwheel_broker", "tickwheel_gateway.wire"},
    "tickwheel_bench.machine": {"tickwheel_bench", "tickwheel_native"},
    "tickwheel_simulation": {"tickwheel", "tickwheel_broker", "timerlog", "tickwheel_native"},
    # It runs the gateway itself, and its clients speak with the gateway's own messages.
    "tickwheel_simulation.rocketmq": {"tickwheel_simulation", "tickwheel", "tickwheel_gateway"},
    # What any program that uses Tickwheel may import.
    "tickwheel_gateway": {
        "tickwheel.errors",
        # What the processes beside a broker have in common.
        "tickwheel.sharing",
        # How a batch says which of its messages have no time.
        "tickwheel.client.times.AT_ONCE",
        # What a grant means.
        "tickwheel.protocol.grants",
        "tickwheel.protocol.limits",
        "tickwheel.protocol.units",
        *PUBLIC,
    },
    # It reads data directories, as Spark does where they are.
    "tickwheel_flight": {
        "timerlog",
        "tickwheel.arrow",
        "tickwheel.errors",
        "tickwheel.protocol.grants",
        "tickwheel.protocol.limits",
        *PUBLIC,
    },
    "tickwheel_push": {
        "tickwheel.errors",
        "tickwheel.sharing",
        # How what is said to the broker is said to its end.
        "tickwheel.client.waiting.last_words",
        # What broker, HTTP API and dashboard judge and write alike.
        "tickwheel.protocol.breaker",
        "tickwheel.protocol.endpoint_states",
        "tickwheel.protocol.endpoint_tests",
        "tickwheel.protocol.headers",
        "tickwheel.protocol.receipts",
        "tickwheel.protocol.targets.signing_secrets",
        "tickwheel.protocol.targets.target_headers",
        "tickwheel.protocol.targets.target_urls",
        "tickwheel.protocol.units",
        *PUBLIC,
    },
    # What any program that uses Tickwheel may import, the one parser of durations and times, receipts as texts, limits.
    "tickwheel_web": {
        "tickwheel.errors",
        "tickwheel.sharing",
        # How a batch says which of its messages have no time.
        "tickwheel.client.times.AT_ONCE",
        # Colours and shapes that the report of Spark has, too.
        "tickwheel.look",
        "tickwheel.stats",
        # What is told of a broker out of them, as `tickwheel top` does.
        "tickwheel.watching",
        "tickwheel.protocol.units",
        "tickwheel.protocol.moments",
        "tickwheel.protocol.headers",
        "tickwheel.protocol.receipts",
        "tickwheel.protocol.limits",
        # How states are called.
        "tickwheel.protocol.endpoint_states.StateName",
        "tickwheel.protocol.message_states",
        # What a grant means, and how people read durations.
        "tickwheel.protocol.grants",
        "tickwheel.protocol.readable",
        # What is wrong with a value, in the words that the broker has for it.
        "tickwheel.protocol.bodies.wording",
        # What the broker makes where none is given, and what of it may be shown.
        "tickwheel.protocol.targets.signing_secrets",
        *PUBLIC,
    },
}

# The pure core does no I/O and reads no clock: time, disk and randomness are passed in.
MAY_NOT_IMPORT: dict[str, set[str]] = {
    "tickwheel_native": {"trio", "anyio", "asyncio", "socket", "threading", "time", "random"},
    "timerlog": {"trio", "anyio", "asyncio", "socket", "threading", "time", "random"},
    "tickwheel.protocol": {"trio", "anyio", "asyncio", "socket", "threading", "time", "random", "os"},
}


def python_files(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in folder_of(package).rglob("*.py"))


def folder_of(package: str) -> Path:
    """Of one of ours, or of the tests."""
    return ROOT / package.removeprefix("tickwheel_") / package if "_" in package else ROOT / package


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if len(parts) > 1 and parts[1] == f"tickwheel_{parts[0]}":
        parts = parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_inside(module: str, place: str) -> bool:
    return module == place or module.startswith(place + ".")


def most_exact_place(module: str, places: dict[str, set[str]]) -> str | None:
    return max((place for place in places if is_inside(module, place)), key=len, default=None)


class Facts(NamedTuple):
    """What the checks need of a module, so that each is parsed once."""

    imports: tuple[str, ...]
    """At any depth; `from a import b` gives `a.b`: b may be a module."""
    has_docstring: bool
    long_functions: tuple[str, ...]
    lines: int


@cache
def facts(path: Path) -> Facts:
    """Of a module of ours."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    imports: list[str] = []
    long: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            imports += [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            if node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES:
                long.append(f"{relative(path)}:{node.name}")
    return Facts(tuple(imports), ast.get_docstring(tree) is not None, tuple(long), text.count("\n"))


def imported_modules(path: Path) -> Sequence[str]:
    """Every module that `path` imports."""
    return facts(path).imports


def forbidden_imports(path: Path) -> list[str]:
    module = module_name(path)
    place = most_exact_place(module, MAY_IMPORT)
    assert place is not None, f"{module} is in no known place: add it to MAY_IMPORT"
    allowed = MAY_IMPORT[place] | {place}
    found = []
    for name in imported_modules(path):
        ours = name.split(".")[0] in PACKAGES
        impure = name.split(".")[0] in MAY_NOT_IMPORT.get(place, set())
        if impure or (ours and not any(is_inside(name, one) for one in allowed)):
            found.append(f"{relative(path)} imports {name}")
    return found


def test_imports_follow_the_arrows() -> None:
    assert [line for path in python_files(*PACKAGES) for line in forbidden_imports(path)] == []


def test_every_module_says_what_it_is() -> None:
    silent = [relative(path) for path in python_files(*PACKAGES, "tests") if not facts(path).has_docstring]
    assert silent == []


def test_modules_are_small() -> None:
    lines = {relative(path): facts(path).lines for path in python_files(*PACKAGES, "tests")}
    long = {name for name, count in lines.items() if count >= MAX_MODULE_LINES}
    assert long == set(LONG_MODULES)


def test_functions_are_small() -> None:
    long = {name for path in python_files(*PACKAGES) for name in facts(path).long_functions}
    assert long == set(LONG_FUNCTIONS)


def project_files() -> list[Path]:
    """Files under version control, and those about to be; outside a git checkout there are none to see."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [path for name in listing.splitlines() if (path := ROOT / name).is_file()]


# Spelled in pieces, so that this file does not find itself.
MACHINE_PATH = re.compile(
    r"(?<![\w.}/])/(?:" + "|".join(["ho" + "me", "ro" + "ot", "Us" + "ers", "wo" + "rk"]) + r")/\w"
)
LEFT_UNDONE = re.compile(r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX"]) + r")\b")


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in project_files():
        if path.suffix in {".binpb", ".svg", ".xz", ".zip", ".png"} or path.name == "LICENSE":
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{relative(path)}:{number}: {line.strip()}")
    return found


def test_no_file_names_a_path_of_one_machine() -> None:
    assert lines_with(MACHINE_PATH) == []


def test_nothing_is_left_for_later_in_the_code() -> None:
    assert lines_with(LEFT_UNDONE) == []


FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def markdown_files() -> list[Path]:
    return [path for path in project_files() if path.suffix == ".md"]


def anchors(path: Path) -> set[str]:
    """The anchors GitHub makes of a page's headings."""
    prose = FENCE.sub("", path.read_text(encoding="utf-8"))
    return {anchor(heading) for heading in re.findall(r"^#+ +(.+?) *$", prose, re.MULTILINE)}


def broken_links(path: Path) -> list[str]:
    broken = []
    for target in LINK.findall(FENCE.sub("", path.read_text(encoding="utf-8"))):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        is_fragment = path.name.startswith("+")  # it will stand in the change log
        file = ((ROOT if is_fragment else path.parent) / name).resolve() if name else path
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(f"{relative(path)}: {target}")
    return broken


def test_links_in_the_documents_lead_somewhere() -> None:
    assert [line for path in markdown_files() for line in broken_links(path)] == []


def test_files_named_in_the_documents_exist() -> None:
    folders = "|".join([*FOLDERS, "tests", "docs"])
    named = {
        (relative(page), name)
        for page in markdown_files()
        for name in re.findall(rf"`((?:{folders})/[\w./-]*)`", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    assert sorted(f"{page}: {name}" for page, name in named if not (ROOT / name).exists()) == []


def test_the_index_lists_every_document() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {
        (index.parent / target.partition("#")[0]).resolve() for target in LINK.findall(index.read_text())
    }
    pages = {path for path in markdown_files() if path.is_relative_to(ROOT / "docs")}
    assert sorted(map(relative, pages - listed - {index})) == []


def test_no_two_decisions_have_the_same_number() -> None:
    numbers = [path.name[:3] for path in (ROOT / "docs" / "decisions").glob("*.md")]
    assert sorted(numbers) == [f"{number:03d}" for number in range(len(numbers))]


def test_documents_name_only_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^\.PHONY: ([\w-]+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target
        for path in markdown_files()
        for code in re.findall(r"```.*?```|`[^`\n]+`", path.read_text(encoding="utf-8"), re.DOTALL)
        for target in re.findall(r"(?:^|[`$;&] ?)make (\w[\w-]*)", code, re.MULTILINE)
    }
    assert "demo" in named
    assert named <= targets


def test_there_is_one_way_to_install() -> None:
    """`pip install .` or `'.[extra]'` in a clone, and then `pip install 'tickwheel[extra]'`; the extra exists."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = "|".join(project["optional-dependencies"])
    ours = re.compile(r"pip install ((?:-e |--editable )?'?(?:tickwheel\b|\.(?=[\s`\['])).*)")
    allowed = re.compile(rf"\.(?:[\s`]|$)|'(?:tickwheel|\.)\[(?:{extras})(?:,(?:{extras}))*\]'")
    pages = [
        path for path in project_files() if path.suffix == ".md" or relative(path).startswith("examples/")
    ]
    named = [
        (relative(path), found) for path in pages for found in ours.findall(path.read_text(encoding="utf-8"))
    ]
    assert len(named) > 20
    assert [line for line in named if allowed.match(line[1]) is None] == []


def test_changelog_has_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(rf"^## \[{re.escape(version)}\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
