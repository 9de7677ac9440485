"""Real PostgreSQL and MariaDB servers of our own, for benchmarks and tests: they can be killed, and leave nothing."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Connection, create_engine, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from tickwheel_bench.processes import PATIENCE_S, children_of, free_port, is_gone, wait_until

_ACCOUNT: Final = "tickwheel"

# Ends what we left behind however we ended: its input is a pipe from us, and closes with us. The
# kernel's own signal at the end of a parent would come too early, with the end of the *thread* that started us.
_GUARD: Final = """
cat
read -r pid <"$1/server.pid" && kill -s KILL -- "-$pid"
for attempt in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$1" && break; sleep 0.2; done
"""

# The process writes its own id, so that the guard knows it from the first moment. It leads a group, which the guard
# kills; PostgreSQL's children are in groups of their own, but end when their parent does.
_LAUNCH: Final = 'echo $$ >server.pid && exec "$@"'


class DatabaseServer(ABC):
    """A server on which databases can be created. As a context manager it is started, and closed afterwards."""

    def __init__(self, home: URL) -> None:
        """``home``: leads to a database that is always there, for an account that may create others."""
        self._home = home

    def url(self, database: str) -> str:
        """The SQLAlchemy URL of a database."""
        return self._home.set(database=database).render_as_string(hide_password=False)

    def create_database(self) -> str:
        """Creates an empty database with a new name; its URL."""
        name = f"tickwheel_{secrets.token_hex(8)}"
        with self._administer() as connection:
            _create(connection, name)
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drops what `create_database` created, though a client may still be connected."""
        with self._administer() as connection:
            _drop(connection, str(make_url(url).database))

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database. It is dropped afterwards, also where a test has killed the server."""
        url = self.create_database()
        try:
            yield url
        finally:
            self.start()
            self.drop_database(url)

    @abstractmethod
    def start(self) -> None:
        """Starts the server, on the same data and the same port each time. Does nothing if it runs."""

    @abstractmethod
    def stop(self) -> None:
        """Ends the server in good order."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL to all processes of the server; returns when they are gone."""

    @abstractmethod
    def close(self) -> None:
        """Ends the server, and deletes its data."""

    @contextmanager
    def _administer(self) -> Iterator[Connection]:
        engine = create_engine(self._home, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with engine.connect() as connection:
            yield connection

    def __enter__(self) -> DatabaseServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PrivateServer(DatabaseServer):
    """A server of our own on a free port of 127.0.0.1. It ends, and its data is deleted, when our process ends
    in whatever way. ``durable``: it keeps its promises also when the machine fails, which is slow."""

    #: The variable in which users name a server to use instead.
    variable: str
    #: The user that it runs as if we are root, who may not run it; the first that exists.
    accounts: Sequence[str]
    scheme: str
    #: What its driver is told.
    options: Mapping[str, str] = {}
    #: What a clean end of the server takes.
    stop_signal: signal.Signals

    def __init__(self, *, durable: bool = True) -> None:
        self.durable = durable
        self.port = free_port()
        self.password = secrets.token_hex(16)
        home = URL.create(self.scheme, _ACCOUNT, self.password, "127.0.0.1", self.port, query=self.options)
        super().__init__(home.set(database=default_database(home)))
        self._owner = _owner(self.accounts) if os.geteuid() == 0 else None
        # Not in a folder of pytest's: only root can enter those if the tests run as root.
        self.folder = Path(tempfile.mkdtemp(prefix="tickwheel-server-"))
        self.data = self.folder / "data"
        self._log = self.folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        if self._owner is not None:
            os.chown(self.folder, self._owner.pw_uid, self._owner.pw_gid)
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "sh", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us
        )

    @staticmethod
    @abstractmethod
    def missing() -> str | None:
        """Why no such server can be started here, and what to install; None if it can."""

    @abstractmethod
    def _prepare(self) -> None:
        """Fills the data directory."""

    @abstractmethod
    def _command(self) -> list[str]:
        """The server's command line."""

    def start(self) -> None:
        """Starts the server and waits until it takes connections; after a kill it has recovered then."""
        if self._process is not None and self._process.poll() is None:
            return
        if not self.data.exists():
            self._prepare()
        self._process = self._spawn(self._command())
        wait_until(self._is_ready, self._report)

    def stop(self) -> None:
        """Ends the server in good order."""
        if self._process is not None:
            self._process.send_signal(self.stop_signal)
            self._process.wait(PATIENCE_S)
            self._forget()

    def kill(self) -> None:
        """SIGKILL to all processes of the server; returns when they are gone."""
        if self._process is not None:
            _kill_family(self._process)
            self._forget()

    def close(self) -> None:
        """Ends the server, and deletes its data. Not in good order, which would only take time."""
        self.kill()
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(PATIENCE_S)

    def _forget(self) -> None:
        self._process = None
        (self.folder / "server.pid").unlink(missing_ok=True)

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the server ended with {self._process.returncode}: {self._report()}")
        try:
            with self._administer():
                return True
        except OperationalError:
            return False

    def _report(self) -> str:
        return f"the end of its log:\n{self._log.read_text(errors='replace')[-4_000:]}"

    def _run(self, *command: str) -> None:
        """Runs a program to its end, as the server's user."""
        code = self._spawn(command).wait(PATIENCE_S)
        self._forget()
        assert code == 0, f"{command[0]} ended with {code}: {self._report()}"

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        owner = self._owner
        with self._log.open("ab") as log:
            return subprocess.Popen(
                ["sh", "-c", _LAUNCH, "sh", *command],
                cwd=self.folder,
                env={**os.environ, "TMPDIR": str(self.folder)},  # where our own is, it may not write
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                user=owner and owner.pw_uid,
                group=owner and owner.pw_gid,
                extra_groups=None if owner is None else [],
                start_new_session=True,
            )

    def _write(self, name: str, content: str) -> Path:
        """A file that only the server's user may read."""
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(content)
        if self._owner is not None:
            os.chown(path, self._owner.pw_uid, self._owner.pw_gid)
        return path


class PostgresServer(PrivateServer):
    """PostgreSQL, as durable as it is by default."""

    variable = "TICKWHEEL_TEST_POSTGRESQL"
    accounts = ("postgres", "nobody")
    scheme = "postgresql+psycopg"
    stop_signal = signal.SIGINT

    @staticmethod
    def missing() -> str | None:
        """Why no such server can be started here, and what to install; None if it can."""
        if _postgres_programs() is not None:
            return None
        return _advice("PostgreSQL", "initdb and postgres", "postgresql", PostgresServer.variable)

    def _prepare(self) -> None:
        password = self._write("password", self.password)
        # --no-sync is for these new files only: after a crash of the machine they are of no use.
        self._run(
            *(self._program("initdb"), f"--username={_ACCOUNT}", f"--pgdata={self.data}", "--no-sync"),
            *("--auth=scram-sha-256", f"--pwfile={password}", "--locale=C", "--encoding=UTF8"),
        )

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            **dict.fromkeys(
                ("fsync", "synchronous_commit", "full_page_writes"), "on" if self.durable else "off"
            ),
            "shared_buffers": "64MB",
            "max_connections": "100",
            "dynamic_shared_memory_type": "mmap",  # in the data directory: elsewhere it would outlive a kill
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [self._program("postgres"), "-D", str(self.data), "-p", str(self.port), *options]

    @staticmethod
    def _program(name: str) -> str:
        folder = _postgres_programs()
        assert folder is not None, PostgresServer.missing()
        return str(folder / name)


class MariaServer(PrivateServer):
    """MariaDB with InnoDB, as durable as it is by default."""

    variable = "TICKWHEEL_TEST_MARIADB"
    accounts = ("mysql", "nobody")
    scheme = "mariadb+pymysql"
    # It cannot speak TLS; the driver would still read the machine's certificates for each connection.
    options: Mapping[str, str] = {"ssl_disabled": "true"}
    stop_signal = signal.SIGTERM

    # The new data directory and the server must agree on it.
    _LAYOUT: Final = ("--innodb-log-file-size=32M",)

    @staticmethod
    def missing() -> str | None:
        """Why no such server can be started here, and what to install; None if it can."""
        if all(_find(name) for name in ("mariadbd", "mariadb-install-db", "my_print_defaults")):
            return None
        packages = "mariadb-server-core mariadb-client-core"
        return _advice("MariaDB", "mariadbd and mariadb-install-db", packages, MariaServer.variable)

    def _prepare(self) -> None:
        # No --user: that would also change the owner of a file of the installed server.
        self._run(
            *(self._program("mariadb-install-db"), "--no-defaults", "--force", "--skip-test-db"),
            *(f"--datadir={self.data}", *self._LAYOUT),
        )
        account = f"{_ACCOUNT}@127.0.0.1"
        self._write(
            "accounts.sql",
            f"CREATE USER IF NOT EXISTS {account} IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO {account} WITH GRANT OPTION;\n",
        )

    def _command(self) -> list[str]:
        return [
            *(self._program("mariadbd"), "--no-defaults"),
            *(f"--datadir={self.data}", f"--tmpdir={self.folder}"),
            *("--bind-address=127.0.0.1", f"--port={self.port}", "--skip-name-resolve"),
            # Inside the data directory, and relative: the whole path may be too long for a socket.
            *("--socket=server.sock", f"--pid-file={self.folder / 'mariadbd.pid'}"),
            f"--innodb-flush-log-at-trx-commit={int(self.durable)}",
            f"--innodb-doublewrite={'ON' if self.durable else 'OFF'}",
            *self._LAYOUT,
            *("--innodb-buffer-pool-size=128M", "--innodb-buffer-pool-dump-at-shutdown=OFF"),
            *("--max-connections=100", "--character-set-server=utf8mb4"),
            f"--init-file={self.folder / 'accounts.sql'}",
        ]

    @staticmethod
    def _program(name: str) -> str:
        path = _find(name)
        assert path is not None, MariaServer.missing()
        return path


def default_database(home: URL) -> str:
    return "postgres" if home.get_backend_name() == "postgresql" else "information_schema"


def _create(connection: Connection, name: str) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"CREATE DATABASE {name}"))
    else:
        connection.execute(text(f"CREATE DATABASE {name} CHARACTER SET utf8mb4"))


def _drop(connection: Connection, name: str) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        return
    # A transaction that was left open would hold its tables without end.
    others = text("SELECT id FROM information_schema.processlist WHERE db = :name")
    for pid in connection.execute(others, {"name": name}).scalars().all():
        with suppress(OperationalError):  # it has ended by itself
            connection.execute(text(f"KILL {pid}"))
    connection.execute(text(f"SET lock_wait_timeout = {PATIENCE_S:.0f}"))
    connection.execute(text(f"DROP DATABASE IF EXISTS {name}"))


def _kill_family(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    # Stopped first: it starts no more children, and does not see how they end.
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    children = children_of(process.pid)
    for pid in children:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()
    wait_until(lambda: all(map(is_gone, children)), lambda: f"some of {children} are still there")


def _advice(product: str, programs: str, packages: str, variable: str) -> str:
    return (
        f"{product}'s programs {programs} are not here: run `make test`, which installs them if it may, "
        f"or `sudo apt-get install --no-install-recommends {packages}`, or name a server in {variable}"
    )


def _find(name: str) -> str | None:
    """Debian's servers are in /usr/sbin, which is not on everybody's path."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin")


def _postgres_programs() -> Path | None:
    """The folder with the newest version."""
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdecimal()]
    newest_first = sorted(versions, key=lambda path: int(path.parent.name), reverse=True)
    on_path = _find("initdb")
    for folder in [*newest_first, *([Path(on_path).parent] if on_path else [])]:
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres")):
            return folder
    return None


def _owner(accounts: Sequence[str]) -> pwd.struct_passwd:
    for name in accounts:
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise AssertionError(f"this machine has none of the users {', '.join(accounts)}")
