"""Judge a table of cases in one test, to the last case, and say of each that fails what is wrong with it.

Hundreds of cheap cases as hundreds of pytest items cost more than what is judged: each process of a run collects all
items. `table` stands where `pytest.mark.parametrize` would, for functions whose cases need no fixture of their own:
fixtures are made once, and are the same for all cases.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import pytest

T = TypeVar("T")
Test = Callable[..., None]

LONGEST: Final = 200
"""Characters of a case that a message shows."""


def each(cases: Iterable[T], judge: Callable[[T], None], label: Callable[[T], str] = repr) -> None:
    """Judge all cases. Raise one `AssertionError` with each case that failed and its difference, if any did."""
    listed = list(cases)
    if not listed:
        raise AssertionError("The table has no cases.")
    failed: list[tuple[str, BaseException]] = []
    for case in listed:
        try:
            judge(case)
        except (Exception, pytest.fail.Exception) as error:
            if "from pytest-timeout" in str(error):  # comes once a test: nothing would end the next case
                error.add_note(f"It came in the case {shortened(label(case))}.")
                raise
            failed.append((shortened(label(case)), error))
    if failed:
        lines = [f"{len(failed)} of {len(listed)} cases failed:"]
        for named, raised in failed:
            lines += [f"- {named}", *_indented(f"{type(raised).__name__}: {raised}")]
        errors = [raised for _, raised in failed]
        raise AssertionError("\n".join(lines)) from BaseExceptionGroup("cases that failed", errors)


def table(
    names: str | tuple[str, ...], cases: Iterable[Any], label: Callable[[Any], str] | None = None
) -> Callable[[Test], Test]:
    """Judge all cases in the one test that is decorated, where `pytest.mark.parametrize` makes a test of each.

    Names are those of arguments. With a single name, as a text, each case is the value itself; otherwise, it is as
    many values as there are names. All other arguments are fixtures. Tables stand above each other for all pairs.
    """
    listed = list(cases)
    several = (names,) if isinstance(names, str) else names

    def arguments(case: Any) -> dict[str, Any]:
        return dict(zip(several, (case,) if isinstance(names, str) else case, strict=True))

    def shown(case: Any) -> str:
        return ", ".join(f"{name}={shortened(repr(value))}" for name, value in arguments(case).items())

    def decorate(function: Test) -> Test:
        if inspect.iscoroutinefunction(inspect.unwrap(function)):
            raise TypeError(f"{function.__name__} is async, and a table is for functions that are not.")
        signature = inspect.signature(function)
        parameters = signature.parameters
        if unknown := set(several) - set(parameters):
            raise TypeError(f"{function.__name__} does not take {', '.join(sorted(unknown))}.")

        @functools.wraps(function)
        def judged(**fixtures: Any) -> None:
            each(listed, lambda case: function(**fixtures, **arguments(case)), label or shown)

        left = [parameter for name, parameter in parameters.items() if name not in several]
        judged.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return judged

    return decorate


def shortened(text: str) -> str:
    """A text without its middle, if it is long."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 50]} … {text[-47:]}"


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]
