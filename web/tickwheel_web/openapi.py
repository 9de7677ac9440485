"""The OpenAPI 3.1 document, made of the table of endpoints. `python -m tickwheel_web.openapi` prints it."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any, Final, get_type_hints

import msgspec

from tickwheel_web.endpoints import Endpoint
from tickwheel_web.problems import MEDIA_TYPE, Problem, phrase_of
from tickwheel_web.shapes import JSON, MAX_BATCH, NDJSON
from tickwheel_web.table import ENDPOINTS, SAID_BY_HAND

EVERYWHERE: Final = (400, 401, 403, 421, 429, 500, 502, 503, 504)
"""Problems that every endpoint may have."""
_REFERENCE: Final = "#/components/schemas/{name}"
_JSON_TYPES: Final[dict[type, str]] = {str: "string", int: "integer"}
_PARAMETER: Final = re.compile(r"{(\w+)}")
_TAGS: Final = {
    "messages": "Send, look at, change and cancel messages.",
    "consuming": "Receive and settle messages; dead letters.",
    "transactions": "Several changes together, or none; prepared messages.",
    "topics": "Topics and their consumer groups.",
    "schedules": "Messages again and again.",
    "push": "Calls to URLs.",
    "monitoring": "Figures, clients, logs, and the disk.",
    "querying": "SQL over the messages.",
}
"""By the room of an endpoint's function."""
_ROWS: Final = {row.name: row for row in ENDPOINTS}
_PATHS: Final = {
    "id": {"description": "The id of a message", "schema": {"type": "string", "pattern": "^[0-9]{1,19}$"}},
    "topic": {
        "description": "The name of a topic",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
    },
    "client": {
        "description": "The number of a connection",
        "schema": {"type": "string", "pattern": "^[0-9]{1,19}$"},
    },
    "group": {
        "description": "The name of a consumer group",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
    },
    "schedule": {
        "description": "The name of a schedule",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
    },
    "endpoint": {
        "description": "The name of a push endpoint",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,122}$"},
    },
    "key": {
        "description": "The key of a message; what is no letter or digit is percent-encoded",
        "schema": {"type": "string", "minLength": 1},
    },
}


def document() -> dict[str, Any]:
    """All of it."""
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Tickwheel",
            "version": "1",
            "summary": "Messages that are delivered at their time.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:7413"}],
        "security": [{"token": []}, {}],
        "tags": [{"name": name, "description": told} for name, told in _TAGS.items()],
        "paths": _paths(),
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of the broker; without one where the broker has none.",
                }
            },
        },
    }
    _give_types(found)
    return found


def _give_types(part: Any) -> None:
    """A list of possible values has a type, too: programs that are generated have a name for it then."""
    if isinstance(part, dict):
        values = part.get("enum")
        if isinstance(values, list):
            kinds = {type(value) for value in values}
            if len(kinds) == 1 and (name := _JSON_TYPES.get(kinds.pop())):
                part.setdefault("type", name)
        if part.get("type") == "array":
            part.setdefault("items", {})  # of any type: some generators leave out what says nothing
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            _give_types(one)


def encoded() -> bytes:
    """As it is served, and as it stands in docs/openapi.json."""
    return msgspec.json.format(msgspec.json.encode(document()), indent=2) + b"\n"


def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return paths


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    answers = {
        str(status): {
            "description": _told(answer),
            "content": {
                endpoint.media_type: {
                    "schema": _reference(answer) if endpoint.media_type == JSON else {"type": "string"}
                },
                **{form: {"schema": _form_of(form)} for form in endpoint.other_forms},
            },
        }
        for status, answer in endpoint.answers.items()
    }
    for status in endpoint.answers if endpoint.leads_to else ():
        answers[str(status)]["links"] = {
            answering.__name__: _link(endpoint, _ROWS[answering.__name__]) for answering in endpoint.leads_to
        }
    problem = {MEDIA_TYPE: {"schema": _reference(Problem)}}
    for status in sorted({*EVERYWHERE, *endpoint.problems}):
        answers[str(status)] = {"description": phrase_of(status), "content": problem}
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "tags": [_tag(endpoint)],
        "summary": endpoint.summary,
        "description": f"Needs the right `{endpoint.right}`.",
        "responses": answers,
    }
    if parameters := [*_path_parameters(endpoint), *_query_parameters(endpoint), *_headers(endpoint)]:
        operation["parameters"] = parameters
    if endpoint.requests is not None:
        operation["requestBody"] = {"required": True, "content": _bodies(endpoint)}
    return operation


def _tag(endpoint: Endpoint) -> str:
    """Generators make a class of the operations of each: one of all of them would have 69 methods."""
    return endpoint.answering.__module__.split(".")[1]


def _link(endpoint: Endpoint, following: Endpoint) -> dict[str, Any]:
    """From what was asked or answered to the parameters of what can be asked next."""
    own = _PARAMETER.findall(endpoint.path)
    names = _PARAMETER.findall(following.path)
    values = {name: f"$request.path.{name}" if name in own else "$response.body#/id" for name in names}
    if "confirm" in following.query.__struct_fields__:
        values["confirm"] = values[names[-1]]
    return {"operationId": following.name, "parameters": values}


def _form_of(media_type: str) -> dict[str, str]:
    """Text, or bytes of which nothing more is said."""
    is_text = media_type.startswith("text/") or media_type in NDJSON
    return {"type": "string"} if is_text else {}


def _told(kind: type[msgspec.Struct]) -> str:
    return " ".join((kind.__doc__ or kind.__name__).split())


def _indented(docstring: str) -> str:
    """The docstring of a class as it is written. Python 3.13 takes the indentation away, and older ones leave it."""
    return inspect.cleandoc(docstring).replace("\n", "\n    ")


def _reference(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(name=kind.__name__)}


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    names = _PARAMETER.findall(endpoint.path)
    return [{"name": name, "in": "path", "required": True, **_PATHS[name]} for name in names]


def _query_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    names = endpoint.query.__struct_encode_fields__
    hints = get_type_hints(endpoint.query, include_extras=True)
    kinds = [hints[field] for field in endpoint.query.__struct_fields__]  # names may differ: `from`
    shapes, _ = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    defaults = dict(zip(reversed(names), reversed(endpoint.query.__struct_defaults__), strict=False))
    return [
        {"name": name, "in": "query", "schema": shape | _default(defaults.get(name))}
        | ({} if name in defaults else {"required": True})
        for name, shape in zip(names, shapes, strict=True)
    ]


def _default(value: object) -> dict[str, object]:
    return {"default": value} if isinstance(value, int) else {}


def _headers(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "description": told, "schema": {"type": "string"}}
        for name, told in (endpoint.headers or {}).items()
    ]


def _bodies(endpoint: Endpoint) -> dict[str, Any]:
    assert endpoint.requests is not None
    bodies: dict[str, Any] = {}
    for content_type, kind in endpoint.requests.items():
        if kind is None:
            bodies[content_type] = {"schema": {}}
        elif isinstance(kind, list):
            schema = {"type": "array", "minItems": 1, "maxItems": MAX_BATCH, "items": _reference(kind[0])}
            bodies[content_type] = {"schema": schema}
        elif content_type in NDJSON:
            bodies[content_type] = {"schema": {"type": "string", "description": f"A {kind.__name__} a line"}}
        else:
            bodies[content_type] = {"schema": _reference(kind)}
    if endpoint.example is not None:
        bodies[JSON]["example"] = endpoint.example
    return bodies


def _schemas() -> dict[str, Any]:
    """What msgspec knows of the shapes, and what it cannot say."""
    kinds: list[type[msgspec.Struct]] = [Problem]
    for endpoint in ENDPOINTS:
        kinds += endpoint.answers.values()
        for one in (endpoint.requests or {}).values():
            if one is not None:
                kinds += one if isinstance(one, list) else [one]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    for schema in schemas.values():
        if "description" in schema:
            schema["description"] = _indented(schema["description"])
    for kind, said in SAID_BY_HAND.items():
        # Always. Beside the schema itself, generators would make unions of classes of `anyOf` and `oneOf`, and some
        # fail; below `then` none of them looks, and programs that check and make requests do.
        schemas[kind.__name__] |= {"if": {}, "then": said}
    return dict(sorted(schemas.items()))


if __name__ == "__main__":
    sys.stdout.buffer.write(encoded())
