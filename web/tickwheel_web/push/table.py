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
        method="GET",
        path="/v1/endpoints",
        answering=endpoints.list_endpoints,
        summary="List the push endpoints of topics that the token sees",
        right="any",
        answers={200: shapes.Endpoints},
        problems=(),
        query=shapes.ListQuery,
    ),
    Endpoint(
        method="GET",
        path=_ONE,
        answering=endpoints.get_endpoint,
        summary="Look at a push endpoint; its secrets are for `admin` and `push`",
        right=_LOOK,
        answers={200: shapes.Endpoint},
        problems=(404,),
    ),
    Endpoint(
        method="PUT",
        path=_ONE,
        answering=endpoints.put_endpoint,
        summary="Have a topic's messages sent to a URL, or replace all that a push endpoint says; its secrets stay",
        right=_ADMIN,
        answers={200: shapes.Endpoint, 201: shapes.Endpoint},
        problems=(404, 408, 412, 413, 415),
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
        method="PATCH",
        path=_ONE,
        answering=endpoints.change_endpoint,
        summary="Change what is given of a push endpoint, all of it or nothing",
        right=_ADMIN,
        answers={200: shapes.Endpoint},
        problems=(404, 408, 412, 413, 415),
        requests={JSON: shapes.ChangedEndpoint},
        headers=_IF_MATCH,
        example={"rate": 10, "format": "structured"},
    ),
    Endpoint(
        method="DELETE",
        path=_ONE,
        answering=endpoints.delete_endpoint,
        summary="Delete a push endpoint, and what waits for it",
        right=_ADMIN,
        answers={200: shapes.DeletedEndpoint},
        problems=(404, 409, 412),
        query=shapes.DeleteQuery,
        headers=_IF_MATCH,
    ),
    Endpoint(
        method="POST",
        path=f"{_ONE}/enable",
        answering=endpoints.enable_endpoint,
        summary="Go on with what waits for a push endpoint",
        right=_ADMIN,
        answers={200: shapes.Endpoint},
        problems=(404, 412),
        headers=_IF_MATCH,
    ),
    Endpoint(
        method="POST",
        path=f"{_ONE}/disable",
        answering=endpoints.disable_endpoint,
        summary="Send nothing to a push endpoint until it is enabled",
        right="admin:{topic} or push:{topic}",
        answers={200: shapes.Endpoint},
        problems=(404, 412),
        query=shapes.DisableQuery,
        headers=_IF_MATCH,
    ),
    Endpoint(
        method="POST",
        path=f"{_ONE}/test",
        answering=endpoints.test_endpoint,
        summary="Have `tickwheel push` send a test that only this push endpoint gets, also while it is disabled",
        right=_ADMIN,
        answers={201: shapes.TestSent},
        problems=(404,),
        leads_to=(endpoints.list_attempts,),
    ),
    Endpoint(
        method="GET",
        path=f"{_ONE}/attempts",
        answering=endpoints.list_attempts,
        summary="List the last deliveries to a push endpoint, and what became of them",
        right=_ADMIN,
        answers={200: shapes.Attempts},
        problems=(404,),
        query=PageQuery,
    ),
    Endpoint(
        method="POST",
        path="/v1/http-tasks",
        answering=tasks.send_http_task,
        summary="Have one request made to a URL, now or at a time, that a push endpoint of the topic allows",
        right="publish:{topic}",
        answers={200: Sent, 201: Sent},
        problems=(408, 413, 415),
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
