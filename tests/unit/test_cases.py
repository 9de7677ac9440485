"""Tables that are judged in one test: all cases are judged, and a failure names each that fails."""

from __future__ import annotations

import inspect

import pytest

from tests.support.run.cases import LONGEST, each, table


def even(number: int) -> None:
    assert number % 2 == 0, f"{number} is odd"


def test_all_that_fail_are_named_with_what_is_wrong() -> None:
    judged = []

    def judge(number: int) -> None:
        judged.append(number)
        if number == 4:
            raise KeyError("four")
        if number == 5:
            with pytest.raises(ZeroDivisionError):
                even(6)
        even(number)

    with pytest.raises(AssertionError) as caught:
        each([1, 2, 3, 4, 5, 6], judge)
    assert judged == [1, 2, 3, 4, 5, 6]
    lines = str(caught.value).splitlines()
    assert lines[0] == "4 of 6 cases failed:"
    assert [line for line in lines if line.startswith("- ")] == ["- 1", "- 3", "- 4", "- 5"]
    assert "    AssertionError: 1 is odd" in lines[2]
    assert "    KeyError: 'four'" in lines
    assert "    Failed: DID NOT RAISE ZeroDivisionError" in lines
    cause = caught.value.__cause__
    assert isinstance(cause, BaseExceptionGroup)
    assert [type(error) for error in cause.exceptions] == [
        AssertionError,
        AssertionError,
        KeyError,
        pytest.fail.Exception,
    ]


def test_what_is_well_says_nothing() -> None:
    each(iter([2, 4]), even)


def test_a_table_without_cases_fails() -> None:
    with pytest.raises(AssertionError, match="no cases"):
        each([], even)


def test_the_end_of_the_time_of_a_test_ends_it() -> None:
    judged = []

    def judge(number: int) -> None:
        judged.append(number)
        pytest.fail("Timeout (>300.0s) from pytest-timeout.")

    with pytest.raises(pytest.fail.Exception, match="Timeout") as caught:
        each([1, 2], judge)
    assert judged == [1]
    assert caught.value.__notes__ == ["It came in the case 1."]


def test_what_is_skipped_or_interrupted_is_not_kept_from_it() -> None:
    for kind in (pytest.skip.Exception, KeyboardInterrupt):

        def judge(_: int, kind: type[BaseException] = kind) -> None:
            raise kind

        with pytest.raises(kind):
            each([1], judge)


def test_a_table_leaves_fixtures_to_the_test_and_names_its_arguments() -> None:
    seen = []

    @table("first", [1, 2])
    @table(("second", "third"), [("a", 0), ("b", 1)])
    def test(place: str, first: int, second: str, third: int) -> None:
        """What it says."""
        seen.append((place, first, second, third))
        assert third == 0

    assert list(inspect.signature(test).parameters) == ["place"]
    assert (test.__name__, test.__doc__) == ("test", "What it says.")
    with pytest.raises(AssertionError) as caught:
        test(place="here")
    assert seen == [("here", 1, "a", 0), ("here", 1, "b", 1), ("here", 2, "a", 0), ("here", 2, "b", 1)]
    lines = [line.strip() for line in str(caught.value).splitlines()]
    assert lines[:2] == ["2 of 2 cases failed:", "- first=1"]
    assert lines.count("- second='b', third=1") == 2


def test_cases_are_shown_short_or_as_the_table_says() -> None:
    @table("text", ["x" * 5_000])
    def long(text: str) -> None:
        assert not text, "it is long"

    with pytest.raises(AssertionError) as caught:
        long()
    assert len(str(caught.value).splitlines()[1]) <= LONGEST + len("- text=")

    @table("number", [1], label=lambda number: f"number {number}")
    def labelled(number: int) -> None:
        even(number)

    with pytest.raises(AssertionError, match="- number 1\n"):
        labelled()


def test_what_no_table_can_do_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="does not take second"):

        @table(("first", "second"), [(1, 2)])
        def test(first: int) -> None:
            """Lacks an argument."""

    with pytest.raises(TypeError, match="is async"):

        @table("first", [1])  # type: ignore[arg-type]
        async def late(first: int) -> None:
            """Would never be awaited."""


@table(("number", "half"), [(2, 1), (4, 2)])
@pytest.mark.parametrize("sign", [1, -1])
def test_it_is_what_pytest_collects(
    request: pytest.FixtureRequest, sign: int, number: int, half: int
) -> None:
    assert request.node.callspec.params == {"sign": sign}
    assert sign * number == 2 * sign * half
