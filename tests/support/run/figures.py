"""How the code is measured as a house: `python -m tests.support.run.figures` prints it, `tests/unit/test_figures.py`
holds each figure to its bound."""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.run.counterparts import COMPARED

ROOT = Path(__file__).resolve().parents[3]
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
LONG_CALL = 7
"""Positional arguments in a call that can be mixed up."""
LONG_CONSTRUCTOR = 5
"""Parameters of a constructor that takes keywords only."""
_TAKES_ANY_NUMBER = frozenset(
    {"pack", "pack_into", "Table", "_table", "Form", "Group", "agg", "warning", "trace"}
)
"""Functions with a parameter of any number of values, ours or others'."""
_TWIN_FIELDS = 6
_TWIN_SHARE = 0.6


@dataclass
class House:
    """What one look at all modules of the product finds."""

    long_calls: list[str] = field(default_factory=list)
    """Calls with many positional arguments, of Python functions: C has no names to give."""
    constructors: list[str] = field(default_factory=list)
    """Classes whose written constructors have many parameters and take some by position, but for exceptions."""
    published_by_hand: list[str] = field(default_factory=list)
    """Calls in the broker that tell of what the engine has changed."""
    fields: dict[str, frozenset[str]] = field(default_factory=dict)
    """The annotated fields of each class, by path and name."""
    assertions: Counter[str] = field(default_factory=Counter)
    """How many there are in each folder."""
    lines: Counter[str] = field(default_factory=Counter)
    """How many there are in each folder."""

    def twins(self, known: frozenset[tuple[str, str]] = COMPARED) -> list[str]:
        """Pairs of classes with six fields or more in common, which are three fifths of the smaller class or more;
        without those that a test compares."""
        large = {name: own for name, own in self.fields.items() if len(own) >= _TWIN_FIELDS}
        return [
            f"{first} {second}"
            for (first, own), (second, others) in itertools.combinations(large.items(), 2)
            if len(own & others) >= max(_TWIN_FIELDS, _TWIN_SHARE * min(len(own), len(others)))
            and (first, second) not in known
        ]

    def lines_per_assertion(self, folder: str) -> float:
        """Lines of code for each `assert`."""
        return self.lines[folder] / self.assertions[folder]


def look() -> House:
    """Reads each module of the product once."""
    house = House()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            house.lines[folder] += text.count("\n")
            look_at(house, folder, path.relative_to(ROOT).as_posix(), ast.parse(text))
    return house


def look_at(house: House, folder: str, path: str, tree: ast.Module) -> None:
    """Adds what is found in one module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            place = f"{path}:{node.lineno} {ast.unparse(node.func)}"
            if _is_long(node):
                house.long_calls.append(place)
            if folder == "broker" and not node.args and place.endswith((".publish", "._publish")):
                house.published_by_hand.append(place)
        elif isinstance(node, ast.Assert):
            house.assertions[folder] += 1
        elif isinstance(node, ast.ClassDef):
            house.fields[f"{path}:{node.name}"] = frozenset(
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            )
            if _takes_positions(node):
                house.constructors.append(f"{path} {node.name}")


def _is_long(call: ast.Call) -> bool:
    count = sum(not isinstance(argument, ast.Starred) for argument in call.args)
    function = ast.unparse(call.func)
    return (
        count >= LONG_CALL
        and not function.startswith("lib.")
        and function.rpartition(".")[2] not in _TAKES_ANY_NUMBER
    )


def _takes_positions(node: ast.ClassDef) -> bool:
    if any(ast.unparse(base).endswith(("Exception", "Error")) for base in node.bases):
        return False
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            positional = len(method.args.args) - 1
            count = positional + len(method.args.kwonlyargs)
            return bool(positional and count >= LONG_CONSTRUCTOR and method.args.vararg is None)
    return False


if __name__ == "__main__":
    found = look()
    print(f"calls with {LONG_CALL} and more positional arguments  {len(found.long_calls)}")
    print(f"publish() by hand                                {len(found.published_by_hand)}")
    print(f"pairs of classes that share most of their fields {len(found.twins())}")
    print(f"lines for each assertion in timerlog             {found.lines_per_assertion('timerlog'):.0f}")
    print(f"lines of Python of the product                   {found.lines.total()}")
