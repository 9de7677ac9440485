"""Importing is lazy: what is not used is not imported, and what is used is there under its name."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import tickwheel
from tickwheel import outbox

HEAVY = {
    "anyio",
    "asyncio",
    "cffi",
    "duckdb",
    "msgspec",
    "numpy",
    "opentelemetry",
    "pyarrow",
    "pyspark",
    "rich",
    "sqlalchemy",
    "ssl",
    "structlog",
    "tickwheel_broker",
    "tickwheel_native",
    "timerlog",
    "trio",
}
LIST = "; import sys; print(*sorted(sys.modules), sep='\\n')"


def imported(*arguments: str) -> set[str]:
    """The modules that a fresh interpreter has at its end."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def top(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_the_package_imports_nothing() -> None:
    found = imported("-c", f"import tickwheel{LIST}")
    assert {name for name in found if name.partition(".")[0] == "tickwheel"} == {"tickwheel"}
    assert top(found) & HEAVY == set()


@pytest.mark.parametrize("package", ["tickwheel.errors", "tickwheel.outbox", "tickwheel.spark"])
def test_a_part_imports_its_errors_only(package: str) -> None:
    found = imported("-c", f"import {package}{LIST}")
    assert package in found
    assert top(found) & HEAVY == set()
    assert not any(name.startswith("tickwheel.client") for name in found)


def test_a_client_needs_neither_the_broker_nor_its_engine() -> None:
    found = imported("-c", f"import tickwheel; tickwheel.Client; tickwheel.sync.Client{LIST}")
    assert "tickwheel.client.client" in found
    assert top(found) & {"tickwheel_broker", "timerlog", "trio", "numpy", "rich", "structlog"} == set()


def test_the_version_is_told_by_the_command_line_alone() -> None:
    script = "import sys; from tickwheel_cli.main import main; sys.argv[1:] = ['--version']"
    found = imported("-c", f"{script}\ntry:\n    main()\nexcept SystemExit:\n    pass\n{LIST[2:]}")
    assert "tickwheel_cli.main" in found
    assert top(found) & HEAVY == set()
    assert not any(name.startswith("tickwheel.") for name in found)


@pytest.mark.parametrize("package", [tickwheel, outbox], ids=lambda one: one.__name__)
def test_the_names_are_those_that_the_table_has_homes_for(package: object) -> None:
    assert isinstance(package, type(sys))
    homes: dict[str, str] = package._HOMES
    assert set(homes) <= set(package.__all__)
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert getattr(package, name) is not None
    for name, home in homes.items():
        assert getattr(package, name) is getattr(importlib.import_module(home), name)


def test_there_are_no_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Broker'"):
        _ = tickwheel.Broker  # type: ignore[attr-defined]
