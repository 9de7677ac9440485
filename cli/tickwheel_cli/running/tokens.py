"""`tickwheel tokens`: who may log in at a broker, and what they may do. It changes a file; no broker is needed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tickwheel_cli.shared.options import DURATION, confirm
from tickwheel_cli.shared.output import print_json, print_result
from tickwheel_cli.shared.session import current_session, json_option

if TYPE_CHECKING:
    from tickwheel_broker.security.tokens import Token

_DIRECTORY = "tickwheel-data"


@click.group()
def tokens() -> None:
    """Who may log in at a broker, and what they may do.

    \b
    tickwheel tokens create shop --grant 'publish:orders.*' --grant consume:receipts --data ./data
    tickwheel tokens list --data ./data
    tickwheel tokens rotate shop --grace 1h --data ./data
    tickwheel tokens revoke shop --data ./data

    As soon as there is a token, nobody gets in by TCP without one. A broker that runs notices changes within a second.
    Grants are PERMISSION:PATTERN with publish, consume, query, admin or all, and topics like orders, orders.* or *.
    """


def _place_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--data` and `--tokens-file`: the command gets the `path` of the file of tokens."""

    @wraps(command)
    def run(data_dir: Path | None, tokens_file: Path | None, **options: Any) -> None:
        command(path=_path(data_dir, tokens_file), **options)

    with_file = click.option(
        "--tokens-file",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="TICKWHEEL_TOKENS_FILE",
        help="The broker's tokens_file, also TICKWHEEL_TOKENS_FILE.",
    )(run)
    return click.option(
        "--data",
        "data_dir",
        type=click.Path(file_okay=False, path_type=Path),
        help=f"The broker's data directory, which has tokens.json.  [default: {_DIRECTORY}]",
    )(json_option(with_file))


_grants = click.option(
    "--grant", "grants", multiple=True, metavar="GRANT", help="Such as consume:orders.*; may be repeated."
)
_out = click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the token into this new file, for nobody else to read, and do not print it.",
)


@tokens.command()
@click.argument("name")
@_grants
@click.option("--expires-in", type=DURATION, help="Such as 90d.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="For people; may be repeated.")
@_out
@_place_options
def create(
    name: str,
    grants: tuple[str, ...],
    expires_in: timedelta | None,
    labels: tuple[str, ...],
    out: Path | None,
    path: Path,
) -> None:
    """Make a token, and print it. It is not kept and cannot be shown again."""
    from tickwheel_broker.security.tokens import new_token

    _check_grants(grants)
    if not grants:
        raise click.UsageError("a token needs at least one --grant, such as --grant consume:orders.*")
    now_ms = _now_ms()
    expires_ms = 0 if expires_in is None else now_ms + _milliseconds(expires_in)
    pairs = dict(_parse_label(label) for label in labels)
    with _changing(path, may_create=True) as known:
        token, text = new_token(name, grants, now_ms, expires_ms=expires_ms, labels=pairs)
        if any(other.name == name and not other.revoked_ms for other in known.values()):
            raise click.UsageError(f"there is a token {name!r} already; rotate it, or choose another name")
        _hand_out(text, out)
        known[token.id] = token
    _tell(token, text, out, "created")


@tokens.command("list")
@_place_options
def list_tokens(path: Path) -> None:
    """List all tokens, without their secrets."""
    from tickwheel_broker.security.tokens import load
    from tickwheel_cli.shared.tables import left, print_table

    known = load(path)
    if current_session().json:
        print_json([_shown(token) for token in known.values()])
        return
    if not known:
        click.echo(f"There are no tokens in {path}.", err=True)
    rows = [
        (t.id, t.name, t.state(_now_ms()), _moment(t.expires_ms) or "never", " ".join(t.grants))
        for t in known.values()
    ]
    print_table(left("id", "name", "state", "expires", "grants"), rows)


@tokens.command()
@click.argument("token")
@_place_options
def show(token: str, path: Path) -> None:
    """Show one token, by id or name, without its secret."""
    from tickwheel_broker.security.tokens import find, load

    shown = _shown(find(load(path), token))
    if current_session().json:
        print_json(shown)
        return
    for name, value in shown.items():
        if isinstance(value, dict):
            value = " ".join(f"{key}={text}" for key, text in value.items())
        click.echo(f"{name:<16}{' '.join(value) if isinstance(value, list) else value or '-'}")


@tokens.command()
@click.argument("token")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_place_options
def revoke(token: str, yes: bool, path: Path) -> None:
    """End a token for good, by id or name; connections that use it are closed within a second."""
    import msgspec

    from tickwheel_broker.security.tokens import find

    if not yes:
        confirm(f"Revoke {token}?")
    with _changing(path) as known:
        found = find(known, token)
        found = msgspec.structs.replace(found, revoked_ms=found.revoked_ms or _now_ms(), previous_until_ms=0)
        known[found.id] = found
    _tell_changed(found, "revoked")


@tokens.command()
@click.argument("token")
@click.option(
    "--grace",
    type=DURATION,
    default="1h",
    show_default=True,
    help="How long the old secret stays valid; 0s ends its connections at once.",
)
@_out
@_place_options
def rotate(token: str, grace: timedelta, out: Path | None, path: Path) -> None:
    """Give a token a new secret, and print it."""
    from tickwheel_broker.security.tokens import find, rotated

    with _changing(path) as known:
        found = find(known, token)
        _check_not_revoked(found)
        changed, text = rotated(found, _now_ms(), _milliseconds(grace))
        _hand_out(text, out)
        known[changed.id] = changed
    _tell(changed, text, out, "rotated")


@tokens.command()
@click.argument("token")
@click.argument("grants", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Take these grants away instead.")
@_place_options
def grant(token: str, grants: tuple[str, ...], remove: bool, path: Path) -> None:
    """Give a token more grants, or with --remove fewer; open connections have them within a second.

    \b
    tickwheel tokens grant shop consume:returns
    tickwheel tokens grant shop 'publish:orders.*' --remove
    """
    import msgspec

    from tickwheel_broker.security.tokens import find

    _check_grants(grants)
    with _changing(path) as known:
        found = find(known, token)
        _check_not_revoked(found)
        missing = [each for each in grants if remove and each not in found.grants]
        if missing:
            raise click.UsageError(f"{found.name} has no grant {missing[0]}; it has {' '.join(found.grants)}")
        kept = [each for each in found.grants if each not in grants]
        found = msgspec.structs.replace(found, grants=kept if remove else [*kept, *dict.fromkeys(grants)])
        known[found.id] = found
    _tell_changed(found, "changed")


# What they share -------------------------------------------------------------------------------------------


def _path(data_dir: Path | None, tokens_file: Path | None) -> Path:
    from tickwheel_broker.security.tokens import FILE_NAME

    data_dir = data_dir or current_session().data
    if tokens_file is not None and data_dir is not None:
        raise click.UsageError("--tokens-file and --data name two files; give one of them")
    return tokens_file or (data_dir or Path(os.environ.get("TICKWHEEL_DATA_DIR", _DIRECTORY))) / FILE_NAME


@contextmanager
def _changing(path: Path, *, may_create: bool = False) -> Iterator[dict[str, Token]]:
    from tickwheel_broker.security.tokens import changing
    from tickwheel_cli.shared.failures import CommandError

    try:
        if may_create:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with changing(path) as known:
            yield known
    except OSError as error:
        raise CommandError(
            "tokens_not_written",
            f"{path} cannot be changed: {error.strerror or error}",
            advice="Name the broker's data directory (--data) or its tokens_file, as a user who may write to it.",
        ) from error


def _hand_out(text: str, out: Path | None) -> None:
    """Into a file before anything else: a token that could not be handed out is not made."""
    from tickwheel_cli.shared.failures import CommandError

    if out is None:
        return
    try:
        with open(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text + "\n")
    except OSError as error:
        raise CommandError(
            "token_not_written",
            f"{out} cannot be written: {error.strerror}; nothing was changed",
            advice="Name a file that is not there yet, in a directory that you can write to.",
        ) from error


def _tell(token: Token, text: str, out: Path | None, what: str) -> None:
    if current_session().json:
        print_json(_shown(token) | ({} if out is not None else {"token": text}))
    elif out is not None:
        click.echo(f"{what} {token.name} ({token.id}); the token is in {out}")
    else:
        click.echo(f"{what} {token.name} ({token.id}); keep the token, it cannot be shown again:", err=True)
        click.echo(text)


def _tell_changed(token: Token, what: str) -> None:
    print_result(_shown(token), f"{what} {token.name} ({token.id}): {' '.join(token.grants) or 'no grants'}")


def _shown(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "state": token.state(_now_ms()),
        "grants": token.grants,
        "created": _moment(token.created_ms),
        "rotated": _moment(token.rotated_ms),
        "old_valid_until": _moment(token.previous_until_ms),
        "expires": _moment(token.expires_ms),
        "revoked": _moment(token.revoked_ms),
        "labels": token.labels,
    }


def _check_grants(grants: Sequence[str]) -> None:
    from tickwheel.protocol.grants import parse_grants

    try:
        parse_grants(grants)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _check_not_revoked(token: Token) -> None:
    if token.revoked_ms:
        raise click.UsageError(f"token {token.id} was revoked; create another one")


def _parse_label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"{text!r} is no label; write it like team=payments")
    return name, value


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _milliseconds(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1_000)


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="seconds") if at_ms else ""
