"""A bell for one sleeping task: cheaper than making a new `trio.Event` for each nap."""

import trio


class Bell:
    """`ring()` wakes the one task in `wait()`, or the next one to come. Rings before a wait are remembered
    as one.

    Ringing is synchronous and must happen in the trio thread.
    """

    __slots__ = ("_rung", "_sleeper")

    def __init__(self) -> None:
        self._rung = False
        self._sleeper: trio.lowlevel.Task | None = None

    def ring(self) -> None:
        """Wake the sleeper. Costs nothing when it has been rung already."""
        self._rung = True
        if self._sleeper is not None:
            trio.lowlevel.reschedule(self._sleeper)
            self._sleeper = None

    def silence(self) -> None:
        """Forget that it was rung: the next one to come waits."""
        self._rung = False

    async def wait(self) -> None:
        """Return once the bell has been rung since the last `wait`; always a checkpoint."""
        if self._rung:
            await trio.lowlevel.checkpoint()
        else:
            assert self._sleeper is None, "a bell wakes one task"
            self._sleeper = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        self._rung = False

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._sleeper = None
        return trio.lowlevel.Abort.SUCCEEDED
