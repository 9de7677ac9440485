"""The name of a place for files, and the options to get there.

Values of options may be secrets: they are never shown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias
from urllib.parse import quote, quote_plus, unquote

from tickwheel.spark.errors import BadPlace

Kind: TypeAlias = Literal["file", "s3", "gs", "azure", "hdfs"]
_KINDS: Final[dict[str, Kind]] = {
    "file": "file", "s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "abfss": "azure", "abfs": "azure",
    "hdfs": "hdfs",
}  # fmt: skip
_KNOWN: Final = "a directory, file:, s3://, s3a://, gs://, abfss:// or hdfs://"
_SCHEME: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_ONE_SLASH: Final = re.compile(rf"^({'|'.join(_KINDS)}):", re.IGNORECASE)
_SECRET_NAME: Final = re.compile(
    r"key|secret|token|passw|sas|credential|connection|service_account|customer", re.I
)
#: Of options that may be shown; the value of a wrong name may be a secret, too.
_PLAIN_NAME: Final = re.compile(r"endpoint|region|^(allow|virtual|skip|user$|replication)", re.I)
_HOST: Final = re.compile(r"[A-Za-z0-9._-]*(:\d+)?")
_SECRET_VARIABLE: Final = re.compile(r"^(AWS|AZURE|GOOGLE|GCS|OBJECT_STORE)_")
#: What is shorter is found in any text by accident.
_SHORTEST_SECRET_CHARS: Final = 4
HIDDEN: Final = "***"


@dataclass(frozen=True, slots=True)
class Place:
    """``host``: a bucket, ``container@account…``, ``host:port`` of a name node. ``path``: in it, without slashes at its
    ends; of a file system with all of them. ``shown``: as it may be shown."""

    kind: Kind
    host: str
    path: str
    shown: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def hidden(self, text: str) -> str:
        """A text without secrets: values of options and of the environment."""
        for secret in self._secrets():
            text = text.replace(secret, HIDDEN)
        return text

    def _secrets(self) -> list[str]:
        given = [value for name, value in self.options if not _PLAIN_NAME.search(name)]
        given += [
            value
            for name, value in os.environ.items()
            if _SECRET_VARIABLE.match(name) and _SECRET_NAME.search(name)
        ]
        found = {form for value in given for form in (value, quote(value, safe=""), quote_plus(value))}
        return sorted((one for one in found if len(one) >= _SHORTEST_SECRET_CHARS), key=len, reverse=True)


def parse_place(where: str | Path, options: Mapping[str, str]) -> Place:
    """Raises ``BadPlace``."""
    text = str(where)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return _without_scheme(text, options)
    kind = _KINDS.get(scheme[1].lower())
    if kind is None:
        raise BadPlace(f"Files cannot be kept at {scheme[1]}://…", advice=f"Use {_KNOWN}.")
    if kind == "file":
        return _without_scheme("file:" + text[scheme.end() :], options)
    host, _, path = text[scheme.end() :].partition("/")
    _check_host(kind, scheme[1], host)
    if "?" in path or "#" in path:
        raise BadPlace(
            f"A place at {scheme[1]}:// ends with a path: a ? or # in it is not taken.",
            advice="Give signatures and keys with --fs KEY=@FILE, or in the environment.",
        )
    if kind == "hdfs":
        path = "/" + path
    path = re.sub("/+", "/", path).rstrip("/")
    shown = f"{scheme[1]}://{host}/{path.lstrip('/')}".rstrip("/")
    if {".", ".."} & set(path.split("/")):
        raise BadPlace(f"{shown} has . or .. in it, which no store knows.", advice="Name the place itself.")
    return Place(kind, host, path, shown, tuple(sorted(options.items())))


def _without_scheme(text: str, options: Mapping[str, str]) -> Place:
    """A path, or ``file:`` and a path."""
    named = _ONE_SLASH.match(text)
    if named is not None and named[1].lower() == "file":
        path = re.sub("^//+", "/", unquote(text[named.end() :]))
        if not path.startswith("/"):
            raise BadPlace(f"{text} names no path from the root on.", advice="Write file:///srv/archive.")
    elif named is not None:
        raise BadPlace(
            f"{text} has not two slashes behind {named[0]}",
            advice=f"Write {named[0]}//… as a text: a Path has one slash.",
        )
    else:
        path = text
    if not path:
        raise BadPlace("A place has no name.", advice=f"Name {_KNOWN}.")
    if options:
        raise BadPlace(
            f"{path} is a directory, which takes no options (--fs).",
            advice=f"Leave them out, or name {_KNOWN}.",
        )
    found = str(Path(path).absolute())
    return Place("file", "", found, found)


def _check_host(kind: Kind, scheme: str, host: str) -> None:
    """Raises ``BadPlace``; nothing that may be a secret is shown."""
    user, at, last = host.rpartition("@")
    if kind == "azure":
        if not at or not user or not last or ":" in user:
            raise BadPlace(
                f"A place at {scheme}:// begins with a container and an account.",
                advice="Write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH.",
            )
        return
    if at:
        raise BadPlace(
            f"A place at {scheme}:// has no user and no key in it: they would stand in logs.",
            advice="Give them with --fs KEY=@FILE, or in the environment.",
        )
    if not host and kind != "hdfs":
        raise BadPlace(
            f"A place at {scheme}:// begins with a bucket.", advice=f"Write {scheme}://BUCKET/PATH."
        )
    if not _HOST.fullmatch(host) or (":" in host and kind != "hdfs"):
        raise BadPlace(
            f"A place at {scheme}:// begins with a name of letters, digits, points and hyphens.",
            advice=f"Write {scheme}://NAME/PATH; keys go to --fs KEY=@FILE, or into the environment.",
        )


def parse_options(pairs: Iterable[str]) -> dict[str, str]:
    """``key=value`` pairs; ``key=@file``: the value stands in a file. Raises ``BadPlace``."""
    parsed: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip()
        if not equals or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", name):
            # The text itself may be a secret.
            raise BadPlace(
                "An option --fs has no key and =.", advice="Write --fs KEY=VALUE, or --fs KEY=@FILE."
            )
        if name in parsed:
            raise BadPlace(f"The option --fs {name}=… is given twice.", advice="Give it once.")
        parsed[name] = _of_file(name, value[1:]) if value.startswith("@") else value
    return parsed


def _of_file(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise BadPlace(
            f"The file of --fs {name}=@{path} cannot be read: {what}.",
            advice="Name a file that has the value and nothing else.",
        ) from None
