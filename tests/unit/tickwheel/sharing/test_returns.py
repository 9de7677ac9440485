"""What is given back is told where it is not taken back: one line for each ask, with the reasons."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from tickwheel import ReceiptResult
from tickwheel.errors import ShuttingDown
from tickwheel.sharing.returns import GIVE_BACK_S, give_back, log_others

LOG = logging.getLogger("tickwheel.returns")
STALE, RETURNED, NACKED, DEAD = (
    ReceiptResult.STALE_RECEIPT,
    ReceiptResult.RETURNED,
    ReceiptResult.NACKED,
    ReceiptResult.DEAD,
)


def answers(*results: ReceiptResult) -> Callable[[], Awaitable[list[ReceiptResult]]]:
    async def ask() -> list[ReceiptResult]:
        await trio.lowlevel.checkpoint()
        return list(results)

    return ask


async def away() -> list[ReceiptResult]:
    raise ShuttingDown("The connection ended.")


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (answers(RETURNED, NACKED, DEAD), []),
        (
            answers(RETURNED, STALE, STALE),
            [(logging.INFO, "2 of 3 messages of 'orders' were not given back: stale_receipt (2)")],
        ),
        (
            away,
            [
                (
                    logging.WARNING,
                    "3 messages of 'orders' were not given back: The connection ended. Send again when it is back.",
                )
            ],
        ),
    ],
)
async def test_the_log_has_what_is_not_taken_back(
    ask: Any, told: list[tuple[int, str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", LOG.name)
    await give_back(LOG, 3, "orders", ask)
    assert [(record.levelno, record.message) for record in caplog.records] == told


async def test_a_cancelled_caller_still_asks(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    async def ask() -> list[ReceiptResult]:
        await trio.sleep(1)
        asked.append(trio.current_time())
        return [RETURNED]

    with trio.CancelScope() as scope:
        scope.cancel()
        await give_back(LOG, 1, "orders", ask)
    assert len(asked) == 1
    assert not caplog.records


async def test_no_answer_ends_in_time(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    begun = trio.current_time()
    await give_back(LOG, 2, "orders", trio.sleep_forever)  # type: ignore[arg-type]
    assert trio.current_time() - begun == pytest.approx(GIVE_BACK_S)
    assert "2 messages of 'orders' were not given back within 5 s" in caplog.text


def test_results_that_are_wanted_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", LOG.name)
    log_others(LOG, "orders", "acked", [ReceiptResult.ACKED], [ReceiptResult.ACKED])
    assert not caplog.records
    log_others(LOG, "orders", "acked", [STALE, ReceiptResult.ACKED], [ReceiptResult.ACKED])
    assert caplog.messages == ["1 of 2 messages of 'orders' were not acked: stale_receipt (1)"]
