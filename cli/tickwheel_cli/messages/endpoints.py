"""`tickwheel endpoints`: URLs to which a topic's messages are carried."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import click

from tickwheel.protocol.limits import MAX_ATTEMPTS
from tickwheel.protocol.targets import signing_secrets
from tickwheel.protocol.targets.target_headers import METHODS
from tickwheel.protocol.units import format_duration
from tickwheel_cli.shared.options import (
    DURATION,
    HEADER,
    PLACE,
    START,
    confirm,
    time_arguments,
    time_options,
)
from tickwheel_cli.shared.output import counted, print_result, printable
from tickwheel_cli.shared.session import current_session, shared_options
from tickwheel_cli.shared.tables import left, print_found, right
from tickwheel_cli.shared.times import format_moment

if TYPE_CHECKING:
    from tickwheel import Endpoint, EndpointAttempt

_COLUMNS = left("endpoint", "topic", "url", "state")
_ATTEMPTS = [*left("time", "message"), *right("attempt", "late"), *left("outcome")]
_PART_OF_LOG = (
    "As much of the log was read as may be for one list: there may be more, and less is known of these."
)
_FIRST_LOOK_S = 0.2
_TEST = "test, "
_UNSETTABLE = (
    "to", "allow-url", "secret", "header", "format", "timeout", "max-in-flight", "rate", "retry-delay",
    "give-up-on", "description",
)  # fmt: skip
_NAMES = {
    "to": "url",
    "allow-url": "allow_urls",
    "secret": "secrets",
    "header": "headers",
    "max-in-flight": "max_in_flight",
    "retry-delay": "retry_delays",
    "give-up-on": "give_up_on",
}


@click.group(invoke_without_command=True)
@shared_options
@click.pass_context
def endpoints(ctx: click.Context) -> None:
    """URLs to which `tickwheel push` carries a topic's messages; alone, it lists them.

    \b
    tickwheel endpoints set shop --topic orders --to https://shop.example/hooks
    tickwheel endpoints list
    tickwheel endpoints disable shop
    tickwheel endpoints set tasks --topic http-tasks --allow-url "https://*.example/*"
    tickwheel endpoints task https://api.example/renew --in 30d
    """
    if ctx.invoked_subcommand is None:
        _print_all()


@endpoints.command("set")
@click.argument("name")
@click.option("--topic", help="Whose messages it gets; cannot be changed later.")
@click.option("--to", help="The URL that they go to.")
@click.option(
    "--allow-url",
    "allow_urls",
    multiple=True,
    help="Instead of --to: each message names its own, such as https://*.example/in/*. Repeatable.",
)
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    help="whsec_…, for signatures; up to five.  [default: the broker makes one]",
)
@click.option("--header", "headers", multiple=True, type=HEADER, help="Of each request. Repeatable.")
@click.option(
    "--format",
    type=click.Choice(["binary", "structured", "plain"]),
    help="CloudEvents in headers, as JSON, or none.  [default: binary]",
)
@click.option("--timeout", type=DURATION, help="For one request, 1s to 5m.  [default: 15s]")
@click.option("--max-in-flight", type=click.IntRange(1, 1_000), help="Requests at a time.  [default: 8]")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Requests a second, at most.")
@click.option(
    "--retry-delay",
    "retry_delays",
    multiple=True,
    type=DURATION,
    help="After each failure the next one; repeatable.  [default: 5s, 5m, 30m, 2h, …, 24h]",
)
@click.option(
    "--give-up-on",
    multiple=True,
    type=click.IntRange(300, 599),
    help="A status after which a message is not tried again. Repeatable.",
)
@click.option("--may-hold/--may-not-hold", default=None, help="It may answer 202 and settle later.")
@click.option("--description", help="What people should know of it; up to 500 characters.")
@click.option(
    "--start",
    type=START,
    help="Where a new one begins: latest, earliest, or a time.  [default: latest]",
)
@click.option(
    "--expected-version", type=click.IntRange(0), help="Only if it has this version; 0: only a new one."
)
@click.option(
    "--unset",
    multiple=True,
    type=click.Choice(_UNSETTABLE),
    help="As if it had never been given; may be repeated.",
)
@shared_options
def set_endpoint(name: str, unset: tuple[str, ...], **options: Any) -> None:
    """Make an endpoint, or change what is given of one. All of it or, when it is refused, nothing.

    A new one gets what becomes due from now on. Its group is push.NAME. Without --secret the broker makes one, which
    the receiver needs to check signatures; it is printed.

    \b
    tickwheel endpoints set shop --topic orders --to https://shop.example/hooks --header "Authorization=Bearer x"
    tickwheel endpoints set shop --retry-delay 5s --retry-delay 1m --give-up-on 400 --give-up-on 422
    tickwheel endpoints set shop --unset rate --expected-version 3
    """
    used = {option: value for option, value in options.items() if value not in (None, ())}
    if "headers" in used:
        used["headers"] = dict(used["headers"])
    if "to" in used:
        used["url"] = used.pop("to")
    if not used and not unset:
        raise click.UsageError("nothing to set: give an option, or --unset")
    with current_session().client(may_create=True) as client:
        endpoint = client.set_endpoint(name, unset=[_NAMES.get(one, one) for one in unset], **used)
    _print(endpoint, secrets=True)


@endpoints.command("list")
@click.option("--topic", help="Only those of a topic.")
@shared_options
def list_endpoints(topic: str | None) -> None:
    """List all endpoints that the token may see, and what becomes of their messages: delivering, failing, not served
    or paused."""
    _print_all(topic)


def _print_all(topic: str | None = None) -> None:
    with current_session().client() as client:
        found = client.endpoints(topic)
    rows = [[one.name, one.topic, _target(one), _state(one)] for one in found]
    print_found(found, _COLUMNS, rows, empty="There are no endpoints yet.")


@endpoints.command()
@click.argument("name")
@click.option("--secrets", is_flag=True, help="With its secrets and the values of its headers.")
@shared_options
def show(name: str, secrets: bool) -> None:
    """Show an endpoint."""
    with current_session().client() as client:
        endpoint = client.endpoint(name)
    _print(endpoint, secrets=secrets)


@endpoints.command()
@click.argument("name")
@shared_options
def enable(name: str) -> None:
    """Go on with what waits for it."""
    with current_session().client() as client:
        endpoint = client.enable_endpoint(name)
    print_result(_fields(endpoint, secrets=False), f"enabled {name}")


@endpoints.command()
@click.argument("name")
@click.option("--reason", default="", help="Is told with it.")
@shared_options
def disable(name: str, reason: str) -> None:
    """Send nothing to it until `enable`; messages wait."""
    with current_session().client() as client:
        endpoint = client.disable_endpoint(name, reason)
    print_result(_fields(endpoint, secrets=False), f"disabled {name}")


@endpoints.command("test")
@click.argument("name")
@click.option(
    "--wait", type=DURATION, default="20s", show_default=True, help="So long for what becomes of it; 0s: not."
)
@shared_options
def send_test(name: str, wait: timedelta) -> None:
    """Have `tickwheel push` send a test to an endpoint, also to one that is disabled, and show what becomes of it.

    It is one request, signed like all others, of the type tickwheel.test; nothing else gets it. Exit code 1: it was
    not taken, or nothing was heard of it in time.
    """
    with current_session().client() as client:
        message_id = client.test_endpoint(name)
        attempt = _awaited(client, name, message_id, wait.total_seconds())
    told = {"id": message_id, "outcome": "waiting", "status": None, "error": ""}
    text = f"{message_id}: nothing was heard of it yet; is `tickwheel push` running?"
    if attempt is not None:
        told |= {"outcome": attempt.outcome, "status": attempt.status, "error": attempt.error}
        text = f"{message_id}: {_became(attempt).removeprefix(_TEST)}"
    print_result(told, text if wait else message_id)
    if wait and told["outcome"] != "acked":
        click.get_current_context().exit(1)


def _awaited(client: Any, name: str, message_id: int, wait_s: float) -> EndpointAttempt | None:
    """What became of a test; None: nothing yet."""
    until_s, pause_s = time.monotonic() + wait_s, _FIRST_LOOK_S
    while (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, pause_s))
        pause_s = min(1.0, 2 * pause_s)
        for attempt in client.endpoint_attempts(name).attempts:
            if attempt.id == message_id and attempt.outcome != "leased":
                return cast("EndpointAttempt", attempt)
    return None


@endpoints.command()
@click.argument("name")
@click.option(
    "--limit", type=click.IntRange(1, MAX_ATTEMPTS), default=20, show_default=True, help="At most so many."
)
@click.option("--before", type=PLACE, help="Only those before the place with which an earlier list ended.")
@shared_options
def attempts(name: str, limit: int, before: tuple[int, int] | None) -> None:
    """List the last deliveries to an endpoint, newest first, and what became of them; with tests.

    On standard error stands the place from which --before goes on, if there are more.
    """
    with current_session().client() as client:
        found = client.endpoint_attempts(name, limit=limit, before=before)
    rows = [
        [
            "-" if one.time_ms is None else format_moment(one.time_ms),
            str(one.id or "-"),
            "-" if one.number is None else str(one.number),
            "-" if one.lateness is None else f"{one.lateness.total_seconds():.3f} s",
            _became(one),
        ]
        for one in found.attempts
    ]
    none = "There were no attempts yet." if found.next is None else "There are none in that part of the log."
    print_found(found.attempts, _ATTEMPTS, rows, empty=none)
    if found.next is not None:
        click.echo(f"next: {found.next[0]}.{found.next[1]}", err=True)
    if found.missing:
        click.echo(_PART_OF_LOG, err=True)


def _became(attempt: EndpointAttempt) -> str:
    again = "" if attempt.next_ms is None else f", next try {format_moment(attempt.next_ms)}"
    if attempt.outcome == "leased":
        again = "" if attempt.next_ms is None else f", until {format_moment(attempt.next_ms)}"
    error = printable(attempt.error.encode())
    test = _TEST if attempt.is_test else ""
    return f"{test}{attempt.outcome}{f': {error}' if error else ''}{again}"


@endpoints.command()
@click.argument("name")
@click.option("--keep-group", is_flag=True, help="Its messages wait for one that is made again.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared_options
def delete(name: str, keep_group: bool, yes: bool) -> None:
    """Delete an endpoint, and what waits for it."""
    if not yes:
        waiting = "" if keep_group else ", and its group with what waits in it"
        confirm(f"Delete endpoint {name!r}{waiting}?")
    with current_session().client() as client:
        backlog = client.delete_endpoint(name, keep_group=keep_group)
    done = "wait in its group" if keep_group else "are not sent to it any more"
    print_result(
        {"deleted": name, "backlog": backlog}, f"deleted {name}; {counted(backlog, 'message')} {done}"
    )


@endpoints.command()
@click.argument("target", metavar="URL")
@click.argument("body", default="")
@time_options
@click.option(
    "--method", type=click.Choice(METHODS, case_sensitive=False), default=METHODS[0], show_default=True
)
@click.option("--header", "headers", multiple=True, type=HEADER, help="Of the request. Repeatable.")
@click.option("--key", help="Topic and key name one task: it is taken once.")
@click.option("--topic", default="http-tasks", show_default=True, help="Of an endpoint with --allow-url.")
@shared_options
def task(
    target: str,
    body: str,
    delay: timedelta | None,
    moment: datetime | None,
    method: str,
    headers: tuple[tuple[str, str], ...],
    key: str | None,
    topic: str,
) -> None:
    """Have one request made to a URL, now or at its time. Prints the message's id.

    \b
    tickwheel endpoints task https://api.example/renew '{"customer": 7}' --at 2031-05-01T09:00+02:00 --key renew-7
    """
    with current_session().client() as client:
        result = client.send_http_task(
            target,
            body.encode("utf-8", "surrogateescape"),
            method=method,
            headers=dict(headers),
            key=key,
            topic=topic,
            **time_arguments(delay, moment),
        )
    print_result({"topic": topic, "id": result.id, "duplicate": result.duplicate}, str(result.id))
    if result.duplicate and not current_session().json:
        click.echo("It was there already: same topic and key.", err=True)


def _target(endpoint: Endpoint) -> str:
    return endpoint.url or " ".join(endpoint.allow_urls)


def _state(endpoint: Endpoint) -> str:
    return endpoint.state.text(datetime.now(UTC))


def _print(endpoint: Endpoint, *, secrets: bool) -> None:
    delays = ", ".join(format_duration(delay_ms) for delay_ms in endpoint.retry_delays_ms)
    rate = f", {endpoint.rate_per_s:g} a second" if endpoint.rate_per_s else ""
    lines = [
        f"{endpoint.name}, version {endpoint.version}",
        f"  {_state(endpoint)}",
        f"  {endpoint.topic} to {_target(endpoint)}, group {endpoint.group}",
        f"  format {endpoint.format}, timeout {format_duration(endpoint.timeout_ms)}, "
        f"{endpoint.max_in_flight} at a time{rate}",
        f"  tried again after {delays or 'nothing: a failure is final'}",
    ]
    if endpoint.give_up_on:
        lines.append(f"  given up on {', '.join(map(str, endpoint.give_up_on))}")
    if endpoint.description:
        lines.append(f"  {printable(endpoint.description.encode())}")
    lines += [f"  header {name}{f': {value}' if secrets else ''}" for name, value in endpoint.headers.items()]
    lines += [f"  secret {_shown(secret, secrets=secrets)}" for secret in endpoint.secrets]
    print_result(_fields(endpoint, secrets=secrets), *lines)


def _shown(secret: str, *, secrets: bool) -> str:
    return secret if secrets or secret.endswith("…") else signing_secrets.shortened(secret)


def _fields(endpoint: Endpoint, *, secrets: bool) -> dict[str, object]:
    fields: dict[str, object] = {name: getattr(endpoint, name) for name in endpoint.__struct_fields__}
    if not secrets:
        fields["secrets"] = [_shown(secret, secrets=False) for secret in endpoint.secrets]
        fields["headers"] = dict.fromkeys(endpoint.headers, "…")
    return fields
