"""The endpoint of queries."""

from __future__ import annotations

from typing import Final

from tickwheel_web.endpoints import Endpoint
from tickwheel_web.querying.query import ARROW, CSV, run_query
from tickwheel_web.querying.shapes import Question, Rows
from tickwheel_web.shapes import JSON, NDJSON

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        method="POST",
        path="/v1/query",
        answering=run_query,
        summary="Ask with SQL what is in the topics; it changes nothing",
        right="query:*",
        answers={200: Rows},
        problems=(408, 413, 415, 501),
        requests={JSON: Question},
        other_forms=(NDJSON[0], CSV, ARROW),
        example={"sql": "select state, count(*) as messages from messages group by state"},
    ),
)
