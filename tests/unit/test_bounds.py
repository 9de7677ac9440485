"""Which environments `make bounds` makes: each extra and each lower bound of pyproject.toml, nothing written twice."""

from __future__ import annotations

import pytest
from packaging.version import Version

from tests.support.run.bounds import ALL, LEFT_OUT, NONE, PROBE, ROOT, not_had, read_project
from tests.support.run.bounds_probe import ROOMS, wants_another_extra

TEXT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
SMALL = """
[project]
dependencies = ["click>=8.1", "Rich>=13,<15"]
[project.optional-dependencies]
spark = ["pyspark==4.3.*", "click>=8.2"]
old = ["tomli>=2; python_version < '3.11'"]
dev = ["pytest>=8"]
"""


def test_each_extra_is_tried() -> None:
    project = read_project(TEXT)
    assert set(project.extras) == set(ROOMS) - {""}
    assert "dev" not in project.extras
    sets = project.sets()
    assert sets[NONE] == []
    assert sets[ALL] == project.extras
    assert set(sets) == {NONE, ALL, *project.extras}
    assert {"dev"} == LEFT_OUT
    assert PROBE.exists()


def test_each_dependency_has_a_lower_bound() -> None:
    project = read_project(TEXT)
    assert len(project.bounds(project.extras)) >= 30


def test_bounds_are_read() -> None:
    project = read_project(SMALL)
    assert project.bounds([]) == {"click": Version("8.1"), "rich": Version("13")}
    found = project.bounds(["spark", "old"])
    assert found == {"click": Version("8.2"), "rich": Version("13"), "pyspark": Version("4.3")}
    with pytest.raises(ValueError, match="rich has no lower bound"):
        read_project(SMALL.replace("Rich>=13,<15", "rich")).bounds([])


def test_a_bound_that_cannot_be_had_is_told() -> None:
    bounds = {"click": Version("8.1"), "rich": Version("13")}
    assert list(not_had(bounds, {"click": Version("8.1.0"), "rich": Version("13.0.0")})) == []
    assert list(not_had(bounds, {"click": Version("8.3.1"), "rich": Version("13")})) == [
        "click 8.1 cannot be had: the lowest release that can is 8.3.1"
    ]


def test_what_is_missing_is_not_what_is_broken() -> None:
    """Of a package that is there, a name that is not there is a fault of its lower bound."""
    missing = RuntimeError("extra_missing")
    missing.__cause__ = ModuleNotFoundError(name="no_such_package_at_all")
    assert wants_another_extra(missing)
    broken = RuntimeError("extra_missing")
    broken.__cause__ = ModuleNotFoundError(name="msgspec.gone")
    assert not wants_another_extra(broken)
    assert not wants_another_extra(ImportError("cannot import name"))
