"""No order in memory decides what a broker, a gateway or a simulation does: a seed would not repeat itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.unit.test_tidy import python_files, relative

PLACES = ("timerlog", "tickwheel_broker", "tickwheel_gateway", "tickwheel_simulation", "tickwheel/client")
"""What runs in a simulation."""
VALUES = {"int", "float", "bool", "str", "bytes", "tuple", "Delivered", "Receipt", "_Event", "_Endpoint"}
"""They are equal by what they say; the last ones are tuples of such."""
_PASSING_ON = {"list", "tuple", "iter", "enumerate"}

# Sets of objects that are gone through, and why their order does not matter. An entry that is no longer needed fails.
MAY_BE_GONE_THROUGH: dict[str, str] = {
    "broker/tickwheel_broker/monitoring/watched.py _looks": "scopes of requests for figures, which no simulation makes",
    "tickwheel/client/plain_socket.py _waiting": "futures of asyncio, and simulations run on trio",
}


def name_of(node: ast.expr) -> str:
    """The last name of a chain."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def sets_of_objects(tree: ast.Module) -> Iterator[str]:
    """Names that a module says are sets of something else than values."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.AnnAssign | ast.arg) or node.annotation is None:
            continue
        for part in ast.walk(node.annotation):
            if isinstance(part, ast.Subscript) and name_of(part.value) == "set":
                named = {
                    name_of(one) for one in ast.walk(part.slice) if isinstance(one, ast.Name | ast.Attribute)
                }
                if not named <= VALUES:
                    yield node.arg if isinstance(node, ast.arg) else name_of(node.target)


def gone_through(tree: ast.Module) -> Iterator[str]:
    """Names whose elements a module takes one after the other, in the order in which they come."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            source = node.iter
            while isinstance(source, ast.Call) and name_of(source.func) in _PASSING_ON and source.args:
                source = source.args[0]
            yield name_of(source)


def found(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {f"{relative(path)} {name}" for name in set(sets_of_objects(tree)) & set(gone_through(tree))}


def test_objects_that_are_gone_through_have_an_order() -> None:
    """A dict with None as its values keeps them in the order in which they came."""
    assert set().union(*map(found, python_files(*PLACES))) == set(MAY_BE_GONE_THROUGH)


def test_a_set_of_objects_that_is_gone_through_is_found() -> None:
    module = ast.parse(
        "class A:\n"
        "    def __init__(self, many: set[int]) -> None:\n"
        "        self._all: set[trio.CancelScope] = set()\n"
        "        self._names: set[str] = set()\n"
        "    def end(self, some: set[B]) -> None:\n"
        "        for one in list(self._all): one.cancel()\n"
        "        for name in self._names: print(name)\n"
        "        print(sorted(some))\n"
    )
    assert set(sets_of_objects(module)) & set(gone_through(module)) == {"_all"}
