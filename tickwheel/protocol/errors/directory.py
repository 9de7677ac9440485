"""What keeps a broker from starting: its directory and its configuration."""

from __future__ import annotations

from tickwheel.protocol.errors.base import TickwheelError


class DirectoryLocked(TickwheelError):
    """Another broker holds the data directory."""

    code = "locked"
    advice = "Stop the other broker, or use another directory: one directory has one owner at a time."
    retryable = True


class DirectoryReadOnly(TickwheelError):
    """The data directory cannot be written."""

    code = "read_only"
    advice = "Give this user write access to the directory, or use another one."


class BadDirectory(TickwheelError):
    """The data directory cannot be used."""

    code = "bad_directory"
    advice = "Name a directory that this user can create and write to."


class DamagedLog(TickwheelError):
    """The log is damaged in the middle, so the broker does not start."""

    code = "damaged"
    advice = (
        "Run `tickwheel inspect DIRECTORY` to see where; restore a backup, or see what `tickwheel repair DIRECTORY` "
        "could save. Nothing was changed."
    )


class UnsupportedFormat(TickwheelError):
    """The data directory was written by a newer version."""

    code = "unsupported_format"
    advice = "Open the directory with the version that wrote it, or newer."


class ConfigError(TickwheelError, ValueError):
    """The configuration is not valid."""

    code = "bad_config"
    advice = "Correct each line; `tickwheel serve --help` explains all settings."
