"""When a message whose handler has failed comes again, and when it is given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tickwheel.client.checks import whole
from tickwheel.client.times import Delay, duration_ms
from tickwheel.protocol.errors import BadArgument


@dataclass(frozen=True)
class RetryPolicy:
    """``attempts``: so often a message is handled before it becomes a dead letter; None: as often as the topic's
    ``max_attempts`` says. ``delays``: how long it waits before its second attempt, its third, and so on; the last one
    holds for all later ones; empty: the topic's backoff, which doubles and has jitter. ``give_up_on``: exceptions that
    another attempt would not change.

    Whichever ends first counts: the policy, or the topic's ``max_attempts``.
    """

    attempts: int | None = None
    delays: Sequence[Delay] = ()
    give_up_on: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        if self.attempts is not None:
            whole(self.attempts, "attempts", 1, 0xFFFF)
        if isinstance(self.delays, str) or not isinstance(self.delays, Sequence):
            raise BadArgument("delays is no list.", advice="Give timedeltas, such as [timedelta(seconds=1)].")
        for delay in self.delays:
            duration_ms(delay, "delays")
        if not (
            isinstance(self.give_up_on, tuple)
            and all(isinstance(one, type) and issubclass(one, Exception) for one in self.give_up_on)
        ):
            raise BadArgument(
                "give_up_on is no tuple of exceptions.", advice="Give classes, such as (ValueError,)."
            )

    def ends_with(self, attempt: int, error: BaseException | None = None) -> bool:
        """Whether a message is given up that has failed in this attempt."""
        if isinstance(error, self.give_up_on):
            return True
        return self.attempts is not None and attempt >= self.attempts


def wait_ms(policy: RetryPolicy, attempt: int) -> int | None:
    """How long a message waits after this attempt; None: as the topic has it.

    >>> from datetime import timedelta
    >>> policy = RetryPolicy(delays=[timedelta(seconds=1), timedelta(minutes=1)])
    >>> [wait_ms(policy, attempt) for attempt in (1, 2, 3)]
    [1000, 60000, 60000]
    """
    if not policy.delays:
        return None
    return duration_ms(policy.delays[min(attempt, len(policy.delays)) - 1], "delays")


def retry_policy(given: RetryPolicy | int | None) -> RetryPolicy:
    """The argument ``retry``: a number is one of attempts. Raises BadArgument."""
    if given is None:
        return RetryPolicy()
    if isinstance(given, RetryPolicy):
        return given
    return RetryPolicy(attempts=whole(given, "retry", 1, 0xFFFF))
