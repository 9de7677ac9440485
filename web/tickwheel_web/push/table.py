"""The rows of endpoints that are pushed to, and of HTTP tasks."""

from __future__ import annotations

from typing import Final

from tickwheel_web.endpoints import Endpoint
from tickwheel_web.push import endpoints, shapes, tasks
from tickwheel_web.push.endpoints import CONDITIONS, IF_MATCH
from tickwheel_web.shapes import JSON, PageQuery, Sent

_ONE: Final = "/v1/endpoints/{endpoint}"
_ADMIN: Final = "admin:{topic}"
_LOOK: Final = "any on {topic}"
_IF_MATCH: Final = {IF_MATCH: CONDITIONS[IF_MATCH]}

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        "GET",
        "/v1/endpoints",
        endpoints.list_endpoints,
        "List the push endpoints of topics that the token sees",
        "any",
        {200: shapes.Endpoints},
        (),
        query=shapes.ListQuery,
    ),
    Endpoint(
        "GET",
        _ONE,
        endpoints.get_endpoint,
        "Look at a push endpoint; its secrets are for `admin` and `push`",
        _LOOK,
        {200: shapes.Endpoint},
        (404,),
    ),
    Endpoint(
        "PUT",
        _ONE,
        endpoints.put_endpoint,
        "Have a topic's messages sent to a URL, or replace all that a push endpoint says; its secrets stay",
        _ADMIN,
        {200: shapes.Endpoint, 201: shapes.Endpoint},
        (404, 408, 412, 413, 415),
        requests={JSON: shapes.NewEndpoint},
        headers=CONDITIONS,
        example={
            "topic": "orders",
            "url": "https://shop.example/hooks",
            "timeout": "30s",
            "give_up_on": [400],
        },
    ),
    Endpoint(
        "PATCH",
        _ONE,
        endpoints.change_endpoint,
        "Change what is given of a push endpoint, all of it or nothing",
        _ADMIN,
        {200: shapes.Endpoint},
        (404, 408, 412, 413, 415),
        requests={JSON: shapes.ChangedEndpoint},
        headers=_IF_MATCH,
        example={"rate": 10, "format": "structured"},
    ),
    Endpoint(
        "DELETE",
        _ONE,
        endpoints.delete_endpoint,
        "Delete a push endpoint, and what waits for it",
        _ADMIN,
        {200: shapes.DeletedEndpoint},
        (404, 409, 412),
        query=shapes.DeleteQuery,
        headers=_IF_MATCH,
    ),
    Endpoint(
        "POST",
        f"{_ONE}/enable",
        endpoints.enable_endpoint,
        "Go on with what waits for a push endpoint",
        _ADMIN,
        {200: shapes.Endpoint},
        (404, 412),
        headers=_IF_MATCH,
    ),
    Endpoint(
        "POST",
        f"{_ONE}/disable",
        endpoints.disable_endpoint,
        "Send nothing to a push endpoint until it is enabled",
        "admin:{topic} or push:{topic}",
        {200: shapes.Endpoint},
        (404, 412),
        query=shapes.DisableQuery,
        headers=_IF_MATCH,
    ),
    Endpoint(
        "POST",
        f"{_ONE}/test",
        endpoints.test_endpoint,
        "Have `tickwheel push` send a test that only this push endpoint gets, also while it is disabled",
        _ADMIN,
        {201: shapes.TestSent},
        (404,),
        leads_to=(endpoints.list_attempts,),
    ),
    Endpoint(
        "GET",
        f"{_ONE}/attempts",
        endpoints.list_attempts,
        "List the last deliveries to a push endpoint, and what became of them",
        _ADMIN,
        {200: shapes.Attempts},
        (404,),
        query=PageQuery,
    ),
    Endpoint(
        "POST",
        "/v1/http-tasks",
        tasks.send_http_task,
        "Have one request made to a URL, now or at a time, that a push endpoint of the topic allows",
        "publish:{topic}",
        {200: Sent, 201: Sent},
        (408, 413, 415),
        requests={JSON: shapes.HttpTask},
        headers={"Idempotency-Key": "Its key, if it says none itself."},
        example={
            "url": "https://api.example/renew",
            "topic": "http-tasks",
            "body": {"customer": 7},
            "delay": "30d",
        },
    ),
)
