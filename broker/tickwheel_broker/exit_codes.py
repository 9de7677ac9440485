"""The exit codes of the daemon and the command line. They are stable: scripts and service managers rely on
them.

Where BSD's `sysexits.h` has a number for a situation, it is used.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Why the process ended."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNCERTAIN = 4
    DAMAGED = 65
    NOT_CONNECTED = 69
    DEFECT = 70
    IO_ERROR = 74
    DISK_FULL = 75
    LOCKED = 76
    READ_ONLY = 77
    BAD_CONFIG = 78
    ADDRESS_IN_USE = 79


_BY_ERROR_CODE = {
    "bad_config": ExitCode.BAD_CONFIG,
    "bad_certificate": ExitCode.BAD_CONFIG,
    "bad_tokens_file": ExitCode.BAD_CONFIG,
    "insecure_listener": ExitCode.BAD_CONFIG,
    "bad_argument": ExitCode.USAGE,
    "bad_time": ExitCode.USAGE,
    "naive_datetime": ExitCode.USAGE,
    "bad_topic_name": ExitCode.USAGE,
    "damaged": ExitCode.DAMAGED,
    "log_lost": ExitCode.DAMAGED,
    "unsupported_format": ExitCode.DAMAGED,
    "bad_backup": ExitCode.DAMAGED,
    "locked": ExitCode.LOCKED,
    "read_only": ExitCode.READ_ONLY,
    "disk_full": ExitCode.DISK_FULL,
    "bad_directory": ExitCode.BAD_CONFIG,
    "no_address_space": ExitCode.BAD_CONFIG,
    "too_many_open_files": ExitCode.DISK_FULL,
    "directory_gone": ExitCode.IO_ERROR,
    "log_failed": ExitCode.IO_ERROR,
    "address_in_use": ExitCode.ADDRESS_IN_USE,
    "no_cluster": ExitCode.BAD_CONFIG,
    "cluster_unfinished": ExitCode.BAD_CONFIG,
    "node_number_taken": ExitCode.BAD_CONFIG,
    "cluster_unreachable": ExitCode.NOT_CONNECTED,
    "not_connected": ExitCode.NOT_CONNECTED,
    "tls_failed": ExitCode.NOT_CONNECTED,
    "tls_required": ExitCode.NOT_CONNECTED,
    "internal": ExitCode.DEFECT,
    "request_uncertain": ExitCode.UNCERTAIN,
}


def exit_code_for(error_code: str) -> ExitCode:
    """The exit code for a typed error's `code`; `FAILED` for one without a number of its own."""
    return _BY_ERROR_CODE.get(error_code, ExitCode.FAILED)
