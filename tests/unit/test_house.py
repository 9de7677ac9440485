"""The house: no circle between files, arrows that run down, rooms that a reader can look over.

Imports for type checkers count as well: what a module must know to be understood is what it imports.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.unit.test_tidy import PACKAGES, ROOT, imported_modules, module_name, python_files, relative

MAX_MODULES_A_FOLDER = 24

# Each part from the ground up. A place imports itself and what lies on lower floors; places that share a floor do not
# know each other. The longest name that fits counts.
FLOORS: dict[str, list[set[str]]] = {
    "timerlog": [
        {"errors"},
        {"settings", "names"},
        {"layout"},
        {"files", "life"},
        {"commitlog", "wheel", "background"},
        {"tables"},
        {"recovery", "engine"},
        {"services", "purge", "bulk", "readers", "maintenance"},
        {"replication"},
        {"store", "query"},
    ],
    "tickwheel_broker": [
        {"config", "bell", "exit_codes", "rest"},
        {"clock", "logs", "group_commit"},
        {"errors", "lifetime"},
        {"net", "security", "counters", "services", "sharedlog"},
        {"background", "children"},
        {"delivery", "documents"},
        {"broker", "monitoring"},
        {"requests"},
        {"connections"},
        {"wiring"},
        {"daemon"},
        {"node"},
    ],
    "tickwheel": [
        {"protocol", "look", "_moments"},
        {"errors", "stats"},
        {"client", "watching"},
        {"client.consumer", "_blocking"},
        {"client.admin", "worker", "blocking"},
        {"client.client"},
        {"tracing", "sync", "sharing.attempts", "sharing.listener", "sharing.private_file"},
        {"sharing"},
        {"_embedded", "outbox", "celery", "arrow"},
        {"spark", "web", "dramatiq", "taskiq"},
        {"testing"},
        {"django"},
        {"__main__"},
    ],
    "tickwheel_cli": [
        {"shared", "lazy"},
        {"messages", "looking", "beside", "working", "outbox", "pipeline", "demo"},
        {"running"},
        {"main"},
    ],
    "tickwheel_gateway": [
        {"_http2"},
        {"transport", "wire"},
        {"filters.refusals", "filters.conversions", "filters.tree"},
        {"filters.tags", "filters.tokens", "filters.operators", "filters.conditions"},
        {"filters.syntax"},
        {"filters.expressions"},
        {"filters"},
        {"transport.call", "transport.limits", "transport.tally"},
        {"transport.abuse", "transport.engine", "transport.sockets", "transport.verdicts"},
        {"transport.framing", "transport.opening"},
        {"transport.heads"},
        {"transport.with_h2.library", "transport.with_h2.stream", "transport.with_h2.guard"},
        {"transport.with_h2.frames", "transport.with_h2.turns"},
        {"transport.with_h2", "transport.with_nghttp2"},
        {"transport.exchange", "transport.batch", "transport.stacks"},
        {"transport.sender"},
        {"transport.connection"},
        {"transport.listener"},
        {"config", "certificates"},
        {"clients"},
        {"delivery"},
        {"calls"},
        {"tally"},
        {"lifetime", "workers.report"},
        {"server", "workers"},
    ],
    "tickwheel_flight": [
        {"commands", "tickets", "turns", "rights", "callers"},
        {"directory", "snapshots", "archives"},
        {"reading"},
        {"bulk"},
        {"bulk.staged_names", "bulk.room"},
        {"bulk.putting", "bulk.incoming"},
        {"bulk.staging"},
        {"bulk.jobs"},
        {"server"},
        {"process"},
    ],
    "tickwheel_push": [
        {"http"},
        {"http.addresses", "http.answer", "http.cloud_event"},
        {"http.request", "http.resolver"},
        {"http.connector"},
        {"http.connections"},
        {"http.exchange"},
        {"outcome", "acks", "clocks"},
        {"intake"},
        {"gate"},
        {"hosts", "taking", "tally", "telling"},
        {"delivery"},
        {"target"},
        {"tasks", "trials"},
        {"process"},
        {"server"},
    ],
    "tickwheel_web": [
        {"problems", "ending", "repeated", "large.aside"},
        {"large"},
        {"middleware", "shapes", "limits", "credit"},
        {"reading", "endpoints", "paging", "bodies", "filters", "answers"},
        {"endpoint_state"},
        {"messages", "consuming", "topics", "schedules", "push", "monitoring", "querying"},
        {"transactions"},
        {"table"},
        {"openapi"},
        {"dashboard.words", "dashboard.drawing", "dashboard.assets", "dashboard.guard", "dashboard.notices"},
        {"dashboard.rights", "dashboard.logins", "dashboard.environment"},
        {"dashboard.figures"},
        {"dashboard.page"},
        {"dashboard"},
        {"dashboard.login", "dashboard.table"},
        {"dashboard.place"},
        {"dashboard.site"},
        {"application", "server"},
    ],
}

# What still offends, each with the reason. An entry that is no longer needed fails too.
CIRCLES: set[str] = set()
ARROWS: set[str] = set()
FULL_FOLDERS: set[str] = set()


def modules() -> dict[str, Path]:
    return {module_name(path): path for path in python_files(*PACKAGES)}


def graph(known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Which of our modules each of them imports. ``from a import b`` is the module ``a.b`` where there is one."""
    edges: dict[str, set[str]] = defaultdict(set)
    for module, path in known.items():
        for name in imported_modules(path):
            target = name if name in known else name.rpartition(".")[0]
            if target in known and target != module:
                edges[module].add(target)
    return edges


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in sorted(edges.get(module, ())):
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            start = stack.index(module)
            circle = stack[start:]
            del stack[start:]
            if len(circle) > 1:
                found.append(sorted(circle))

    for module in sorted(edges):
        if module not in index:
            visit(module)
    return found


def floor_of(module: str) -> tuple[str, str, int] | None:
    """The part, the place in it, and the floor; None for a package's own ``__init__``."""
    part, _, rest = module.partition(".")
    places = [
        (place, floor)
        for floor, row in enumerate(FLOORS.get(part, []))
        for place in row
        if rest == place or rest.startswith(place + ".")
    ]
    if not places:
        return None
    place, floor = max(places, key=lambda found: len(found[0]))
    return part, place, floor


def rising(edges: Mapping[str, set[str]]) -> Iterator[str]:
    """The imports within a part that do not run down."""
    for module, targets in edges.items():
        own = floor_of(module)
        for target in targets:
            other = floor_of(target)
            if own is None or other is None or own[0] != other[0] or own[1] == other[1]:
                continue
            if other[2] >= own[2]:
                yield f"{module} -> {target}"


def test_no_circle_between_files() -> None:
    assert {" ".join(circle) for circle in circles(graph(modules()))} == CIRCLES


@pytest.mark.parametrize("folder", ["native", "gateway/native"])
def test_no_circle_between_sources_in_c(folder: str) -> None:
    """A source calls what another one defines and does not keep to itself."""
    sources = {path.name: path.read_text() for path in (ROOT / folder).glob("[a-z]*.c")}
    home = {
        name: file
        for file, text in sources.items()
        for name in re.findall(r"^(?!static)(?:[\w*]+[ *]+)+(\w+)\([^;{]*\) *\{", text, re.MULTILINE)
    }
    assert len(home) > 20
    edges = {
        file: {home[name] for name in re.findall(r"\b(\w+)\(", text) if home.get(name, file) != file}
        for file, text in sources.items()
    }
    assert circles(edges) == []


def test_arrows_run_down() -> None:
    assert set(rising(graph(modules()))) == ARROWS


def test_every_module_has_a_place() -> None:
    parts = {part: set().union(*rows) for part, rows in FLOORS.items()}
    assert [
        name for name in modules() if name.partition(".")[0] in parts and "." in name and not floor_of(name)
    ] == []


def test_no_folder_is_too_full() -> None:
    counts = Counter(relative(path.parent) for path in modules().values() if path.name != "__init__.py")
    assert {folder for folder, count in counts.items() if count > MAX_MODULES_A_FOLDER} == FULL_FOLDERS


def test_offences_are_found() -> None:
    """The checks themselves: a circle through a type-only import, and an arrow that rises."""
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert circles(edges) == [["a", "b", "c"]]
    assert list(rising({"timerlog.files.disk": {"timerlog.store"}})) == [
        "timerlog.files.disk -> timerlog.store"
    ]
    assert list(rising({"timerlog.purge.purger": {"timerlog.bulk.job"}})) != []
    assert list(rising({"timerlog.store": {"timerlog.files.disk"}})) == []
    tree = ast.parse("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import timerlog.store")
    assert any(isinstance(node, ast.Import) for node in ast.walk(tree))
