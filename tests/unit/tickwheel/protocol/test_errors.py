"""Each error code is defined once: what clients see of it is as recorded, and the engine says nothing else."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from pathlib import Path

from tests.support.run.cases import table
from tickwheel import errors
from tickwheel.errors import TopicExists
from tickwheel.protocol.errors import ServerError, TickwheelError, base, error_class, error_from_wire, to_wire
from tickwheel_broker.errors import from_store
from timerlog import errors as engine

RECORDED = Path(__file__).parents[3] / "recorded" / "errors.txt"


def every_error() -> list[type[TickwheelError]]:
    found = [getattr(errors, name) for name in sorted(dir(errors))]
    return [one for one in found if isinstance(one, type) and issubclass(one, TickwheelError)]


def lines() -> Iterator[str]:
    for cls in every_error():
        error = cls()
        again = " retryable" if error.retryable else ""
        yield f"{cls.__name__} [{error.code}]{again}"
        yield f"    {error.message}"
        yield f"    {error.advice}"


def test_codes_messages_and_advice_are_the_recorded_ones() -> None:
    assert list(lines()) == RECORDED.read_text(encoding="utf-8").splitlines()


def test_a_code_has_its_most_exact_class() -> None:
    codes: dict[str, list[type[TickwheelError]]] = {}
    for cls in every_error():
        codes.setdefault(cls.code, []).append(cls)
    for code, classes in codes.items():
        if classes == [TickwheelError]:
            continue
        assert error_class(code) in classes
        assert not any(issubclass(one, error_class(code)) for one in classes if one is not error_class(code))


@table("cls", every_error())
def test_an_error_comes_through_the_wire_as_it_was(cls: type[TickwheelError]) -> None:
    error = cls("It went wrong.")
    found = error_from_wire(to_wire(error))
    assert type(found) is error_class(cls.code)
    assert (found.code, found.message, found.advice) == (error.code, error.message, error.advice)
    assert found.retryable == error.retryable


def engine_errors(cls: type[engine.StoreError] = engine.StoreError) -> Iterator[type[engine.StoreError]]:
    for child in cls.__subclasses__():
        if child.__module__ == engine.__name__:
            yield child
        yield from engine_errors(child)


@table("cls", sorted(set(engine_errors()), key=lambda cls: cls.__name__))
def test_what_the_engine_refuses_is_told_with_the_one_advice_of_its_code(
    cls: type[engine.StoreError],
) -> None:
    told, known = from_store(cls("it went wrong")), error_class(cls.code)
    assert (told.code, told.message) == (cls.code if cls.code != "internal" else told.code, "it went wrong")
    if known is ServerError:  # clients have no class for it
        assert cls.advice
    elif cls.advice is None:
        assert told.advice == known.advice
    else:  # more exact than the code's
        assert told.advice == cls.advice != known.advice


def test_examples_in_the_text() -> None:
    found = doctest.testmod(base)
    assert (found.failed, found.attempted > 0) == (0, True)


def test_what_happened_and_what_to_do_are_two_sentences() -> None:
    error = TopicExists("there is a topic 'mails' already, and it has other settings")
    assert "other settings. Use another name" in str(error)
    assert str(TopicExists("no advice", advice="")) == "no advice"
