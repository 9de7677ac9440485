"""`tickwheel send`: one message from the command line, or many from a file of JSON lines."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from typing import Any, BinaryIO

import click

from tickwheel.protocol.readable import format_duration
from tickwheel_broker.exit_codes import ExitCode, exit_code_for
from tickwheel_cli.messages.bulk_send import BulkReport, send_file
from tickwheel_cli.shared.failures import CommandFailed, print_error
from tickwheel_cli.shared.options import HEADER, time_arguments, time_options
from tickwheel_cli.shared.output import print_json, remark
from tickwheel_cli.shared.session import current_session, shared_options
from tickwheel_cli.shared.times import format_moment, moment_to_ms


@click.command()
@click.argument("topic", required=False)
@click.argument("body", required=False)
@time_options
@click.option("--key", help="Makes the send idempotent: topic and key name one message.")
@click.option(
    "--priority", type=click.IntRange(0, 255), help="Lower is first.  [default: the topic's, usually 50]"
)
@click.option("--order-key", help="Messages that share one are delivered one at a time, in order.")
@click.option("--delay-level", type=click.IntRange(1, 255), help="1 to 18: RocketMQ's 1 s to 2 h.")
@click.option("--header", "headers", multiple=True, type=HEADER, help="May be repeated.")
@click.option("--body-json", is_flag=True, help="The body is JSON: it is checked, and its header says so.")
@click.option("--file", "body_file", type=click.File("rb"), help="The body is this file; - is stdin.")
@click.option(
    "--from-file", "bulk_file", type=click.File("rb"), help="Many messages: one JSON object a line."
)
@click.option("--skip-bad", is_flag=True, help="With --from-file: send the good lines all the same.")
@shared_options
def send(
    topic: str | None,
    body: str | None,
    delay: timedelta | None,
    moment: datetime | None,
    key: str | None,
    priority: int | None,
    order_key: str | None,
    delay_level: int | None,
    headers: tuple[tuple[str, str], ...],
    body_json: bool,
    body_file: BinaryIO | None,
    bulk_file: BinaryIO | None,
    skip_bad: bool,
) -> None:
    """Send a message, for now or for a time. It is on the broker's disk when this returns.

    \b
    tickwheel send reminders "call Ada" --in 30s
    tickwheel send reminders "renew it" --at 2031-05-01T09:00+02:00 --key renewal-17
    tickwheel send orders "paid" --order-key customer-7
    tickwheel send photos --file cat.jpg --header type=image/jpeg
    date | tickwheel send ticks -
    tickwheel send orders --from-file orders.jsonl

    A line of --from-file holds "body" or "body_base64" and, as you like, "topic", "key", "order_key",
    "priority", "headers" and one of "at", "in", "delay_level" and "deliver_at_ms":

    \b
    {"body": "call Ada", "in": "2h30m", "key": "ada-1"}
    {"body_base64": "AAEC", "topic": "raw", "at": "2031-05-01T09:00+02:00"}

    When a line is wrong, all wrong lines are listed and nothing is sent.
    """
    time = time_arguments(delay, moment)
    if bulk_file is not None:
        one_message_only = body is not None or body_file is not None or time or key or headers or body_json
        if one_message_only or priority is not None or order_key or delay_level:
            raise click.UsageError(
                "with --from-file, the lines say body, time, key, order_key, priority and headers"
            )
        _report_bulk(send_file(current_session(), bulk_file, topic, skip_bad=skip_bad))
        return
    if topic is None:
        raise click.UsageError("Missing argument 'TOPIC'.")
    content = _read_body(body, body_file)
    given = {**(_json_headers(content) if body_json else {}), **dict(headers)}
    with current_session().client(may_create=True) as client:
        result = client.send(
            topic,
            content,
            key=key,
            priority=priority,
            order_key=order_key,
            delay_level=delay_level,
            headers=given or None,
            **time,
        )
        made = client.created_topics
    for name in made:
        remark(f"made topic {name!r}")
    _report_one(topic, result, _due_text(delay, moment, delay_level))


def _json_headers(content: bytes) -> dict[str, str]:
    """Raises UsageError for a body that is no JSON."""
    import msgspec

    try:
        msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise click.UsageError(f"the body is no JSON: {error}") from None
    return {"content-type": "application/json"}


def _due_text(delay: timedelta | None, moment: datetime | None, delay_level: int | None) -> str:
    """When a message is due, as far as the command line says it."""
    if moment is not None:
        return f"due {format_moment(moment_to_ms(moment))}"
    if delay is not None:
        return f"due in {format_duration(delay / timedelta(milliseconds=1))}"
    return "due now" if delay_level is None else f"due after delay level {delay_level}"


def _read_body(body: str | None, body_file: BinaryIO | None) -> bytes:
    if (body is None) == (body_file is None):
        raise click.UsageError('give the body either as an argument ("-" reads stdin) or with --file')
    if body_file is not None:
        return body_file.read()
    if body == "-":
        return sys.stdin.buffer.read()
    assert body is not None
    return body.encode("utf-8", "surrogateescape")


def _report_one(topic: str, result: Any, due: str) -> None:
    if current_session().json:
        told = {"topic": topic, "id": result.id, "duplicate": result.duplicate, "differs": result.differs}
        print_json(told)
        return
    click.echo(str(result.id))
    if not result.duplicate:
        remark(f"message {result.id} of {topic}, {due}")
    if result.differs:
        click.echo("Nothing was stored: there is another message with this topic and key.", err=True)
    elif result.duplicate:
        click.echo("It was there already: same topic and key.", err=True)


def _report_bulk(report: BulkReport) -> None:
    if current_session().json:
        print_json(report)
    else:
        for problem in report.problems[:20]:
            click.echo(f"line {problem.line}: {problem.reason}", err=True)
        if len(report.problems) > 20:
            click.echo(f"… and {len(report.problems) - 20:,} more", err=True)
        click.echo(report.summary())
        if report.error is not None:
            print_error(report.error["code"], report.error["message"], report.error["advice"])
    if report.error is not None:
        raise CommandFailed(exit_code_for(report.error["code"]))
    if report.problems:
        raise CommandFailed(ExitCode.FAILED)
