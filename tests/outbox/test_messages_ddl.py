"""The statements of a message table as text: what `create` executes, and what the servers' own clients take."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.outbox.messages import execute, fast, get, send
from tests.support.processes.cli_harness import Shell
from tickwheel import outbox
from tickwheel.outbox import BadTable, Database, MessageTable
from tickwheel.protocol.errors import BadArgument

NUMBERS = count()
COLUMNS = [
    sa.Column("tenant_id", sa.BigInteger),
    sa.Column("message", sa.JSON),
    sa.Column("kind", sa.Enum("a", "b", name="kinds")),
    sa.Column("at", sa.DateTime, comment="when it was"),
    sa.Column("body", sa.LargeBinary),
]


def run_client(url: sa.URL, script: str) -> None:
    """As a user pipes a file into the database's own client."""
    if url.get_backend_name() == "sqlite":
        with sqlite3.connect(str(url.database)) as connection:
            connection.executescript(script)
        connection.close()
        return
    assert url.database is not None
    if url.get_backend_name() == "postgresql":
        command = [
            "psql",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            url.set(drivername="postgresql").render_as_string(False),
        ]
    else:
        command = [f"--host={url.host}", f"--port={url.port}", f"--user={url.username}", url.database]
        command = ["mariadb", "--no-defaults", "--protocol=tcp", *command]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]}, the server's own client, is not installed")
    environment = {**os.environ, "MYSQL_PWD": url.password or ""}
    done = subprocess.run(command, input=script, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def dialect_of(database: Database) -> str:
    return database.engine.url.get_backend_name()


@pytest.mark.parametrize("columns", [None, COLUMNS])
def test_the_text_is_what_create_executes(database: Database, columns: Any) -> None:
    name = f"ddl{next(NUMBERS)}"
    seen: list[str] = []

    def before(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(" ".join(statement.split()))

    sa.event.listen(database.engine, "before_cursor_execute", before)
    try:
        MessageTable(database, name).create(columns, fast(batch_size=7))
    finally:
        sa.event.remove(database.engine, "before_cursor_execute", before)
    printed = [
        " ".join(one.split()) for one in outbox.ddl(dialect_of(database), name, columns, fast(batch_size=7))
    ]
    makes = ("CREATE", "ALTER", "COMMENT", "create", "drop trigger")
    executed = [one.replace("%%", "%") for one in seen if one.startswith(makes)]
    assert sorted(one for one in printed if one.startswith(makes)) == sorted(set(executed))
    if columns is not None and database.kind == "postgresql":
        assert "CREATE TYPE kinds AS ENUM ('a', 'b')" in printed
        database.run(lambda one: one.exec_driver_sql(f"drop table {name}; drop type kinds"))


NAMES = ["mails", "Mixed Case", "semi;colon's", "per%cent:colon", "back\\slash"]


@pytest.mark.parametrize("name", NAMES)
async def test_the_text_makes_a_table_that_works(database: Database, name: str) -> None:
    settings = fast(batch_size=7)
    statements = outbox.ddl(dialect_of(database), name, settings=settings)
    run_client(database.engine.url, "".join(f"{one};\n" for one in statements))
    table = MessageTable(database, name)
    assert table.settings == settings
    assert table.schema.is_strict
    version = table.schema.version
    assert table.create().schema.version == version
    async with table.stream() as stream:
        send(table, "hello")
        message = await get(stream)
        assert message["message"] == "hello"
        await message.ack()
    table.drop()


def test_the_text_adopts_a_table(database: Database) -> None:
    name = f"ddl{next(NUMBERS)}"
    MessageTable(database, name).create()
    with database.begin() as connection:
        made = f"create table {name}_old as select * from {name}"
        connection.execute(sa.text(made))
        connection.execute(sa.text(f"create unique index {name}_id on {name}_old (id)"))
    table = MessageTable(database, f"{name}_old")
    with pytest.raises(BadTable):
        table.reload()
    for _ in range(2):  # safe to repeat
        statements = outbox.ddl(dialect_of(database), table.name, settings=fast(batch_size=3), adopt=True)
        run_client(database.engine.url, "".join(f"{one};\n" for one in statements))
    assert table.settings.batch_size == 3
    execute(table, f"insert into {table.name} (id, priority, epoch, time_next) values (1, 50, 0, 0)")
    assert [one.id for one in table.claim()] == [1]


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(BadArgument, match="oracle") as caught:
        outbox.ddl("oracle", "mails")
    assert "mariadb, mysql, postgresql, sqlite" in caught.value.advice
    with pytest.raises(BadTable, match="epoch"):
        outbox.ddl("sqlite", "mails", [sa.Column("epoch", sa.Integer)])


def test_the_command_prints_it_and_asks_no_database(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    (printed,) = [
        shell.text("outbox", "init", "mails", "--sql", "--column", "tenant:integer", "--ack-wait", "1m")
    ]
    settings = outbox.MessageSettings(ack_wait_ms=60_000)
    columns = [sa.Column("tenant", sa.BigInteger)]
    assert printed == "".join(f"{one};\n" for one in outbox.ddl("sqlite", "mails", columns, settings))
    assert list(tmp_path.iterdir()) == []
    unreachable = "mariadb+pymysql://nobody@127.0.0.1:1/none"
    printed = shell.text("outbox", "init", "mails", "--sql", "--adopt", "--database", unreachable, "--json")
    assert "ALTER TABLE mails COMMENT" in printed
    wrong = shell.run("outbox", "init", "mails", "--dialect", "mysql", code=2)
    assert b"--sql" in wrong.stderr
    wrong = shell.run("outbox", "init", "mails", "--sql", "--database", "no url", code=2)
    assert b"--dialect" in wrong.stderr
