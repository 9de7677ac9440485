"""What Kombu and Celery must know of this transport: its URLs, what it does to tasks, and that it can broadcast."""

from __future__ import annotations

from typing import Any, Final

from celery.signals import task_prerun, worker_init, worker_process_shutdown
from celery.worker.consumer.gossip import Gossip
from celery.worker.consumer.mingle import Mingle
from kombu.transport import TRANSPORT_ALIASES

from tickwheel.celery.eta import put_back
from tickwheel.celery.slots import fill_in
from tickwheel.celery.task_message import fault_of_message, fault_of_payload
from tickwheel.celery.transport.envelope import ARRIVALS
from tickwheel.celery.transport.exits import EXIT
from tickwheel.celery.transport.message import CHECKS, Check

TRANSPORT: Final = "tickwheel.celery.transport.transport:Transport"
"""Where Kombu finds it; also for ``broker_transport``."""

DRIVER: Final = "tickwheel"
_TASKS: Final = Check(fault_of_message, fault_of_payload)
_SOLO_LEASE_S: Final = 3600.0
"""As long as Redis has it."""


def register() -> None:
    """Makes the URLs known, and connects to the signals. Any number of times."""
    for scheme in ("tickwheel", "tickwheels"):
        TRANSPORT_ALIASES[scheme] = TRANSPORT
    # Celery has lists of the transports that can broadcast: without this, workers start as --without-mingle and
    # --without-gossip have it.
    for step in (Mingle, Gossip):
        step.compatible_transports = frozenset({*step.compatible_transports, DRIVER})
    if fill_in not in ARRIVALS:
        ARRIVALS.append(fill_in)
    task_prerun.connect(put_back, weak=False, dispatch_uid="tickwheel.eta")
    worker_init.connect(lease_for_solo, weak=False, dispatch_uid="tickwheel.solo")
    worker_init.connect(renew_while_stopping, weak=False, dispatch_uid="tickwheel.stopping")
    worker_init.connect(check_tasks, weak=False, dispatch_uid="tickwheel.check")
    worker_init.connect(replace_request, weak=False, dispatch_uid="tickwheel.request")
    worker_process_shutdown.connect(end_own_queues, weak=False, dispatch_uid="tickwheel.exit")


def lease_for_solo(sender: Any = None, **_: Any) -> None:
    """For the signal ``worker_init``: a pool that runs tasks in the loop itself cannot renew leases meanwhile, so they
    are long."""
    pool = getattr(sender, "pool_cls", None)
    name = pool if isinstance(pool, str) else getattr(pool, "__module__", "")
    if sender is not None and name.rpartition(".")[2] == "solo":
        options = dict(sender.app.conf.broker_transport_options or {})
        options.setdefault("visibility_timeout", _SOLO_LEASE_S)
        sender.app.conf.broker_transport_options = options


def replace_request(sender: Any = None, **_: Any) -> None:
    """For the signal ``worker_init``: see `tickwheel.celery.request`. A ``Request`` of the app's own stays."""
    from tickwheel.celery.request import CELERYS, REQUEST  # only workers need it

    if sender is not None and sender.app.Task.Request == CELERYS:
        sender.app.Task.Request = REQUEST


def renew_while_stopping(sender: Any = None, **_: Any) -> None:
    """For the signal ``worker_init``: a task that runs on while its worker stops keeps its lease."""
    from tickwheel.celery.stopping import Stopping  # only workers need it

    if sender is not None:
        sender.app.steps["worker"].add(Stopping)


def end_own_queues(**_: Any) -> None:
    """For the signal ``worker_process_shutdown``: a process of a pool ends without Python's ``atexit``."""
    EXIT.carry_out()


def check_tasks(**_: Any) -> None:
    """For the signal ``worker_init``: a worker is given no task message that would end it."""
    if _TASKS not in CHECKS:
        CHECKS.append(_TASKS)
