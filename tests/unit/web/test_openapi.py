"""The OpenAPI document: valid, the one that is committed, and true of the table it is made of."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from openapi_spec_validator import validate

from tests.support.run.cases import table
from tickwheel import errors
from tickwheel.errors import TickwheelError
from tickwheel_web import problems
from tickwheel_web.openapi import EVERYWHERE, document, encoded
from tickwheel_web.problems import status_of
from tickwheel_web.shapes import read_other
from tickwheel_web.table import ENDPOINTS

ROOT = Path(__file__).resolve().parents[3]


def test_it_is_the_committed_one() -> None:
    """A difference is a change of the API: python -m tickwheel_web.openapi > docs/openapi.json"""
    assert (ROOT / "docs" / "openapi.json").read_bytes() == encoded()


def test_it_is_the_same_for_each_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 has other phrases for some statuses, and takes the indentation of docstrings away."""
    before = encoded()
    for status, phrase in [(413, "Content Too Large"), (422, "Unprocessable Content")]:
        monkeypatch.setattr(HTTPStatus(status), "phrase", phrase)
    kinds = {kind for row in ENDPOINTS for kind in row.answers.values()}
    for kind in kinds:
        monkeypatch.setattr(kind, "__doc__", inspect.cleandoc(kind.__doc__ or ""))
    assert "\n" in "".join(kind.__doc__ or "" for kind in kinds)
    assert encoded() == before
    assert [problems.phrase_of(status) for status in (413, 422)] == [
        "Request Entity Too Large",
        "Unprocessable Entity",
    ]


def test_it_is_valid() -> None:
    validate(msgspec.json.decode(encoded()))


def test_generators_make_a_type_of_each_schema() -> None:
    """And no union of what has one of some fields: conditions stand where they do not look."""
    schemas = document()["components"]["schemas"]
    assert all(schema["type"] in ("object", "string") for schema in schemas.values())
    assert not [
        name for name, schema in schemas.items() if {"anyOf", "oneOf", "allOf", "not"} & schema.keys()
    ]
    assert {"Move", "NewSchedule", "Send"} <= {name for name, schema in schemas.items() if "then" in schema}


def test_times_are_told_from_texts() -> None:
    def shapes(hint: object) -> Iterator[type[msgspec.Struct]]:
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield hint
            for inner in get_type_hints(hint).values():
                yield from shapes(inner)
        for part in get_args(hint):
            yield from shapes(part)

    found = {
        kind for row in ENDPOINTS for each in (row.query, *row.answers.values()) for kind in shapes(each)
    }
    assert len(found) > len(ENDPOINTS)
    for kind in found:
        for name, hint in get_type_hints(kind, include_extras=True).items():
            bare = hint, *(() if get_origin(hint) is Annotated else get_args(hint))
            assert datetime not in bare, f"{kind.__name__}.{name} has no format: use Moment"


def test_rows_have_names_of_their_own_and_name_their_parameters() -> None:
    names = [row.name for row in ENDPOINTS]
    assert len(set(names)) == len(names)
    paths = document()["paths"]
    for row in ENDPOINTS:
        operation = paths[row.path][row.method.lower()]
        given = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
        assert given == set(re.findall(r"{(\w+)}", row.path))
        assert {str(status) for status in (*row.answers, *row.problems, *EVERYWHERE)} == set(
            operation["responses"]
        )


@table("row", ENDPOINTS, label=lambda row: row.name)
def test_examples_are_what_the_row_takes(row: object) -> None:
    for one in ENDPOINTS:
        if one is row and one.example is not None:
            assert one.requests is not None
            kind = one.requests["application/json"]
            assert kind is not None
            examples = one.example if isinstance(one.example, list) else [one.example]
            for example in examples:
                wanted = kind[0] if isinstance(kind, list) else kind
                msgspec.json.decode(msgspec.json.encode(example), type=wanted, dec_hook=read_other)


def test_the_page_lists_the_endpoints() -> None:
    page = (ROOT / "docs" / "how-to" / "http.md").read_text()
    rows = [f"| {row.method} `{row.path}` | {row.summary} | `{row.right}` |" for row in ENDPOINTS]
    assert [line for line in page.splitlines() if re.match(r"\| (GET|POST|PUT|PATCH|DELETE) ", line)] == rows


@table(
    ("code", "status"),
    [
        ("naive_datetime", 400),
        ("bad_token", 401),
        ("forbidden", 403),
        ("unknown_topic", 404),
        ("body_too_large", 413),
        ("too_many_attempts", 429),
        ("not_connected", 503),
        ("disk_full", 503),
        ("send_uncertain", 504),
        ("internal", 500),
    ],
)
def test_the_status_of_an_error(code: str, status: int) -> None:
    assert status_of(errors.error_class(code)()) == status


def test_every_status_is_one_of_an_error_that_there_is() -> None:
    known = {
        kind.code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, TickwheelError)
    }
    assert set(problems._STATUS_OF_CODE) <= known


#: For whoever runs the broker: there is no path for it.
BY_COMMAND = {
    *("bad_token", "forbidden", "token_expired", "token_revoked", "unknown_token"),
    *("bad_config", "damaged", "insecure_listener"),
}


def test_advice_over_http_names_no_commands() -> None:
    told = {
        kind.code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, TickwheelError) and "`tickwheel " in kind.advice
    }
    assert told - set(problems._ADVICE) == BY_COMMAND


def test_operations_have_tags_and_names_that_say_what_they_are_about() -> None:
    found = document()
    known = [tag["name"] for tag in found["tags"]]
    operations = [one for path in found["paths"].values() for one in path.values()]
    assert {tag for one in operations for tag in one["tags"]} == set(known)
    assert all(len(one["tags"]) == 1 for one in operations)
    assert max(Counter(tag for one in operations for tag in one["tags"]).values()) < 20
    assert not [one["operationId"] for one in operations if "_" not in one["operationId"]]


def test_each_array_says_what_is_in_it() -> None:
    def arrays(part: Any) -> Iterator[Any]:
        if isinstance(part, dict):
            if part.get("type") == "array":
                yield part
            part = list(part.values())
        if isinstance(part, list):
            for one in part:
                yield from arrays(one)

    found = list(arrays(document()))
    assert found
    assert all("items" in one for one in found)
