"""Spark sessions for the pipeline: quiet, on all cores of this machine unless told otherwise, with our format."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tickwheel.arrow.errors import SourceError
from tickwheel.spark.errors import SparkError, SparkMissing
from tickwheel.spark.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: PySpark imports the first two only later, with errors of its own.
_NEEDED: Final = ("pandas", "pyarrow", "pyspark")
DEFAULT_MASTER: Final = "local[*]"
#: What a session of a Spark Connect server may set, too.
QUERY_SETTINGS: Final = {
    # Without this a reader that takes filters is refused.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
_CONNECT: Final = "sc://"
_CONNECT_PORT: Final = 15002
_CONNECT_LIMIT_S: Final = 10
_CLIENT: Final = "pyspark[connect]==4.3.*"
_GIB: Final = 1 << 30
_MAX_DRIVER_GIB: Final = 4
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_WARNS_OF_SPARK: Final = 24  # from this version on Java warns of what Spark does with memory
_QUIET: Final = Path(__file__).with_name("quiet.log4j2.properties")


def register(spark: SparkSession) -> None:
    """Makes ``format("tickwheel")`` known to a session."""
    from tickwheel.spark.source import TickwheelSource

    spark.dataSource.register(TickwheelSource)


def require_pyspark() -> Any:
    """The pyspark package. Raises ``SparkMissing``."""
    for name in _NEEDED:
        try:
            module = importlib.import_module(name)
        except ImportError:
            raise _missing(name) from None
    return module


def find_pyspark() -> None:
    """Whether what is needed is installed, without the seconds that importing it takes. Raises ``SparkMissing``."""
    for name in _NEEDED:
        try:
            found = importlib.util.find_spec(name)
        except ValueError:  # an import that was forbidden, as tests do
            found = None
        if found is None:
            raise _missing(name)


def _missing(name: str) -> SparkMissing:
    return SparkMissing(f"The pipeline needs PySpark, and {name} cannot be imported.")


def make_session(
    app: str = "tickwheel",
    *,
    master: str = DEFAULT_MASTER,
    conf: Mapping[str, str] | None = None,
    progress: bool | None = None,
    quiet: bool = True,
) -> SparkSession:
    """A session with the format ``tickwheel``. ``master``: as Spark has it, or ``sc://host:port`` of a Spark Connect
    server. ``conf`` goes to Spark as it is, and has the last word. ``progress``: a bar on standard error, by default
    where that is a terminal. A session that runs already is used as it is.

    Raises ``SparkMissing``, ``JavaMissing`` (not for a server: the Java is there).
    """
    require_pyspark()
    show = sys.stderr.isatty() if progress is None else progress
    if needs_java(master):
        spark = _started(app, master, dict(conf or {}), show, quiet)
    else:
        spark = _connected(app, master, dict(conf or {}), show)
    register(spark)
    return spark


def needs_java(master: str) -> bool:
    """Whether the driver is this process, and not a server of Spark Connect."""
    return not master.startswith(_CONNECT)


def _connected(app: str, url: str, conf: dict[str, str], show: bool) -> SparkSession:
    """A session of a server, which has its own Java, memory and log."""
    _check_reachable(url)
    try:
        importlib.import_module("pyspark.sql.connect.session")
    except ImportError as error:
        raise SparkMissing(
            f"The client of Spark Connect is not complete: {str(error).rstrip(chr(46))}.",
            advice=f"pip install '{_CLIENT}'",
        ) from None
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app).remote(url)
    for name, value in (QUERY_SETTINGS | conf).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if not show:
        spark.clearProgressHandlers()
    return spark


def _check_reachable(url: str) -> None:
    """The client itself tries for ten minutes and says nothing meanwhile."""
    try:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname or "", parts.port or _CONNECT_PORT), _CONNECT_LIMIT_S):
            pass
    except (OSError, ValueError) as error:
        raise SparkError(
            f"No server of Spark Connect answers at {url}: {error}.",
            advice="Start it, or give its address: --master sc://host:port.",
        ) from None


def _started(app: str, master: str, conf: dict[str, str], show: bool, quiet: bool) -> SparkSession:
    """A session whose driver is this process."""
    from pyspark.sql import SparkSession

    java = find_java()
    prepare_environment(java)
    builder = SparkSession.builder.appName(app).master(master)
    chosen = settings(show_progress=show, quiet=quiet, java_version=java.version) | conf
    if quiet and _JAVA_OPTIONS in conf:
        chosen[_JAVA_OPTIONS] = f"{quiet_options(java.version)} {conf[_JAVA_OPTIONS]}"
    for name, value in chosen.items():
        builder = builder.config(name, value)
    if quiet:
        # PySpark logs each error that it raises, with the whole stack of the JVM.
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    return builder.getOrCreate()


def prepare_environment(java: Java) -> None:
    """What Spark reads from the environment: which Java, and that its workers run this very Python."""
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def settings(*, show_progress: bool, quiet: bool, java_version: int) -> dict[str, str]:
    """What we set where the user does not."""
    chosen = QUERY_SETTINGS | {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(show_progress).lower(),
        "spark.driver.memory": f"{driver_memory_gib()}g",
    }
    if quiet:
        chosen[_JAVA_OPTIONS] = quiet_options(java_version)
    return chosen


def quiet_options(java_version: int) -> str:
    """Options of Java that silence warnings of Spark and of Java about which a user can do nothing."""
    options = f"-Dlog4j2.configurationFile={_QUIET.as_uri()}"
    if java_version >= _WARNS_OF_SPARK:
        options += " --sun-misc-unsafe-memory-access=allow --enable-native-access=ALL-UNNAMED"
    return options


def driver_memory_gib() -> int:
    """A quarter of the machine, 1 to 4 GiB: on ``local[*]`` the driver does all the work."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(max(total // 4 // _GIB, 1), _MAX_DRIVER_GIB))


def parse_conf(pairs: tuple[str, ...] | list[str]) -> dict[str, str]:
    """``name=value`` pairs. Raises ``SourceError``."""
    parsed = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise SourceError(f"{pair!r} is not a setting of Spark.", advice="Write --conf name=value.")
        parsed[name.strip()] = value
    return parsed
