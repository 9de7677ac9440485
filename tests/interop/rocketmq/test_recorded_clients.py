"""RocketMQ's own clients for Go and Node.js, unchanged, on a real broker and gateway: they see what they saw of
RocketMQ 5.3.3, which is written down beside this; also with TLS, and with access keys.

The clients come from the registries of their languages, so only ``make interop`` runs this.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from tests.interop.rocketmq.known_differences import known_of
from tests.interop.rocketmq.programs import HERE, PROGRAMS, Program, printed
from tests.interop.rocketmq.servers import ours
from tests.support.rocketmq.differences import FAILED, differences, observed
from tests.support.rocketmq.gateway_process import Gateway
from tests.support.rocketmq.guarded_gateway import Guarded
from tests.support.run.registries import Registries

LANGUAGES: Final = ("go", "node")
LIMIT_S: Final = 240
SOME: Final = (2, 4, 5, 8, 11)
"""Steps: all kinds of calls and streams, and the shorter ones."""

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(2 * LIMIT_S),
]


@pytest.fixture(scope="module", params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def program(language: str, tmp_path_factory: pytest.TempPathFactory) -> Program:
    return PROGRAMS[language](tmp_path_factory.mktemp(language), Registries())


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with ours(tmp_path_factory.mktemp("ours"), LANGUAGES) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Guarded:
    return Guarded(tmp_path_factory.mktemp("guarded"), {"all": "all:*", "elsewhere": "all:elsewhere"})


@pytest.fixture(scope="module")
def secure(guarded: Guarded) -> Iterator[Gateway]:
    """It takes who has TLS and access keys."""
    with ours(guarded.data.parent, LANGUAGES, *guarded.flags) as running:
        yield running


def seen_by(
    program: Program, gateway: Gateway, language: str, *steps: int, secrets: Mapping[str, str] = {}
) -> list[str]:
    """By a program that has come to its end, whether all its steps have or not."""
    program = program._replace(environment={**program.environment, **secrets})
    done = printed(program, gateway.address, language, *map(str, steps), limit_s=LIMIT_S)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


def recorded(language: str, *steps: int) -> list[str]:
    lines = (HERE / f"{language}_of_rocketmq_5_3_3.jsonl").read_text().splitlines()
    return [line for line in lines if not steps or json.loads(line)["step"] in steps]


def different(language: str, lines: list[str], *steps: int) -> list[str]:
    """From what was recorded of these steps."""
    known = [one for one in known_of(language) if not steps or one.step in steps]
    return differences(observed(recorded(language, *steps)), observed(lines), known)


def test_it_sees_what_it_sees_of_rocketmq(language: str, program: Program, gateway: Gateway) -> None:
    assert different(language, seen_by(program, gateway, language)) == []


def secrets_of(guarded: Guarded, name: str) -> dict[str, str]:
    """With them a client uses TLS, which Go does not verify, and the pair of that name."""
    pair = guarded.pairs[name]
    return {
        "TLS": "1",
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": guarded.ca_path,
        "ACCESS_KEY": pair.access_key,
        "SECRET_KEY": pair.secret_key,
    }


def test_it_sees_the_same_with_tls_and_access_keys(
    language: str, program: Program, secure: Gateway, guarded: Guarded
) -> None:
    lines = seen_by(program, secure, language, *SOME, secrets=secrets_of(guarded, "all"))
    assert different(language, lines, *SOME) == []


REFUSED: Final = {
    ("go", "wrong secret"): "UNAUTHORIZED",
    ("go", "no right"): "failed to sync settings",  # it does not say what the answer was
    ("node", "wrong secret"): "UnauthorizedException",
    ("node", "no right"): "ForbiddenException",
}
"""What a client says of it."""


@pytest.mark.parametrize("how", ["wrong secret", "no right"])
def test_it_is_refused_without(
    how: str, language: str, program: Program, secure: Gateway, guarded: Guarded
) -> None:
    secrets = secrets_of(guarded, "elsewhere" if how == "no right" else "all")
    if how == "wrong secret":
        secrets["SECRET_KEY"] = "guessed"
    (line,) = seen_by(program, secure, language, 2, secrets=secrets)
    told = json.loads(line)
    assert told["what"] == FAILED
    assert REFUSED[language, how] in told["trace"]
