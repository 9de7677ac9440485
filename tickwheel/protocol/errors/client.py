"""What a client says without its broker."""

from __future__ import annotations

from tickwheel.protocol.errors.base import TickwheelError


class BadArgument(TickwheelError, ValueError):
    """An argument is not allowed."""

    code = "bad_argument"
    advice = "Correct the call."


class TracingMissing(TickwheelError, ImportError):
    """Traces were asked for, and OpenTelemetry is not installed."""

    code = "extra_missing"
    advice = (
        "Install it: pip install 'tickwheel[tracing]', and an SDK (opentelemetry-sdk) that takes the spans."
    )


class WebMissing(TickwheelError, ImportError):
    """The HTTP API was asked for, and what it needs is not installed."""

    code = "extra_missing"
    advice = "Install it: pip install 'tickwheel[web]'."


class PushMissing(TickwheelError, ImportError):
    """Messages were to be sent to URLs, and what that needs is not installed."""

    code = "extra_missing"
    advice = "Install it: pip install 'tickwheel[push]'."


class WorkMissing(TickwheelError, ImportError):
    """`tickwheel work` was to show its metrics or to reload code, and what that needs is not installed."""

    code = "extra_missing"
    advice = "Install it: pip install 'tickwheel[work]'."


class GatewayMissing(TickwheelError, ImportError):
    """The gateway for RocketMQ was asked for, and what it needs is not installed."""

    code = "extra_missing"
    advice = "Install it: pip install 'tickwheel[rocketmq]'."


class FlightMissing(TickwheelError, ImportError):
    """Arrow Flight was asked for, and what it needs is not installed."""

    code = "extra_missing"
    advice = "Install it: pip install 'tickwheel[flight]'."


class CeleryMissing(TickwheelError, ModuleNotFoundError):
    """The broker for Celery was asked for, and Celery is not installed."""

    code = "extra_missing"
    advice = "Install it: pip install 'tickwheel[celery]'."


class DramatiqMissing(TickwheelError, ImportError):
    """The broker for Dramatiq was asked for, and Dramatiq is not installed."""

    code = "extra_missing"
    advice = "Install it: pip install 'tickwheel[dramatiq]'."


class TaskiqMissing(TickwheelError, ImportError):
    """The broker for Taskiq was asked for, and Taskiq is not installed."""

    code = "extra_missing"
    advice = "Install it: pip install 'tickwheel[taskiq]'."


class NotConnected(TickwheelError, ConnectionError):
    """There is no connection to the broker."""

    code = "not_connected"
    advice = "Check the address and that the broker runs (tickwheel serve)."
    retryable = True


class ClientClosed(NotConnected):
    """The client is closed."""

    code = "client_closed"
    advice = "Use it inside its `async with` (or `with`) block."
    retryable = False


class ClientForked(ClientClosed):
    """This client was made before the process forked, and belongs to the parent."""

    code = "client_forked"
    advice = (
        "Make it after the fork: in gunicorn's post_fork, in Celery's worker_process_init, or at first use."
    )


class RequestTimeout(TickwheelError, TimeoutError):
    """The broker did not answer in time; the request may or may not have been carried out."""

    code = "request_timeout"
    advice = "Try again; with a key, a message that did arrive is not stored twice."
    retryable = True


class RequestUncertain(RequestTimeout):
    """The answer to a request was lost, and it is not known whether the request was carried out."""

    code = "request_uncertain"
    advice = "Look at what it was to change before you make it again."
    retryable = False


class SendUncertain(TickwheelError, ConnectionError):
    """The connection broke before the broker confirmed a message without key: it may or may not be stored."""

    code = "send_uncertain"
    advice = (
        "Give messages a key (or auto_key=True): then the client sends them again by itself, never twice."
    )
    retryable = True
