"""What the storage engine refuses, as typed errors with a stable code and advice."""

from __future__ import annotations

from typing import Final

import msgspec

#: What reading MessagePack or JSON of others may raise: text that is not UTF-8, and values nested too deeply, have
#: errors of their own.
DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class StoreError(Exception):
    """The store cannot do this."""

    code = "internal"
    advice = "This is a defect; please report it with the log."


class DiskFull(StoreError):
    """The disk is full; nothing was accepted."""

    code = "disk_full"
    advice = "Free space or extend the disk; deliveries and acks go on, sends work again once there is room."


class DirectoryLocked(StoreError):
    """Another broker holds the data directory."""

    code = "locked"
    advice = "Stop the other broker, or use another directory: one directory has one owner at a time."


class DirectoryReadOnly(StoreError):
    """The data directory cannot be written."""

    code = "read_only"
    advice = "Give this user write access to the directory, or use another one."


class BadDirectory(StoreError):
    """The data directory cannot be used."""

    code = "bad_directory"
    advice = "Name a directory that this user can create and write to."


class DirectoryGone(StoreError):
    """The data directory, or its log, was deleted, renamed or replaced while the broker used it."""

    code = "directory_gone"
    advice = (
        "Nothing is accepted into files that are gone. Put the directory back, or restore a backup, and start again; "
        "never delete or move a data directory while its broker runs."
    )


class TooManyOpenFiles(DiskFull):
    """The process, or the system, may open no more files. The disk is in order, but what needs another file waits, or
    is refused, as on one that is full."""

    code = "too_many_open_files"
    advice = (
        "Raise the limit of open files (ulimit -n; LimitNOFILE= for systemd), or let fewer clients connect."
    )


class NoAddressSpace(StoreError):
    """The process may not reserve the addresses into which files are mapped."""

    code = "no_address_space"
    advice = (
        "Lift the limit of address space (ulimit -v unlimited; LimitAS=infinity for systemd). Addresses are reserved "
        "for tables to grow and cost no memory; to limit memory, use a control group (MemoryMax=)."
    )


class NoDataDirectory(BadDirectory):
    """What should be read is not a data directory."""

    advice = "Name the data directory of a broker."


class TablesMissing(StoreError):
    """The tables of a data directory are not there, or not those of its log."""

    code = "tables_missing"
    advice = "Start a broker on the directory once: it makes the tables again. Then it may be stopped."


class PositionGone(StoreError):
    """The log does not hold the records at a position any more, or never did."""

    code = "position_gone"
    advice = "Start again at the earliest position that is left, and count what lies between as missed."


class BadSettings(StoreError):
    """A setting does not fit what the directory holds."""

    code = "bad_config"
    advice = "Change the setting that the message names."


class DamagedLog(StoreError):
    """The CommitLog is damaged in its middle."""

    code = "damaged"
    advice = (
        "Run `tickwheel inspect DIRECTORY` to see where; restore a backup, or see what `tickwheel repair DIRECTORY` "
        "could save. Nothing was changed."
    )


class Unrepairable(DamagedLog):
    """Nothing of a damaged directory can be saved by a repair."""

    advice = "Restore a backup: `tickwheel restore BACKUP DIRECTORY`. Nothing was changed."


class UnsupportedFormat(StoreError):
    """The files were written by another version."""

    code = "unsupported_format"
    advice = "Open the directory with the version that wrote it, or newer."


class LogFailed(StoreError):
    """Writing to the disk failed; the log accepts nothing more."""

    code = "log_failed"
    advice = "Check the disk, then restart: everything that was acknowledged is on it."


class UnknownTopic(StoreError):
    """There is no such topic."""

    code = "unknown_topic"
    advice = "Check its name: `tickwheel topics` lists them all."


class UnknownGroup(StoreError):
    """There is no such group."""

    code = "unknown_group"
    advice = (
        "`tickwheel groups` lists them all; the first subscription makes one, or `tickwheel groups create`."
    )


class BadName(StoreError):
    """A topic or group name must match [A-Za-z0-9][A-Za-z0-9._-]{0,127}."""

    code = "bad_topic_name"
    advice = "Use letters, digits, dots, underscores and dashes; at most 128 characters, 123 for a topic."


class TooManyTopics(StoreError):
    """The limit of topics is reached."""

    code = "too_many_topics"
    advice = "Raise max_topics, or use fewer topics and more keys."


class TooManyGroups(StoreError):
    """The limit of consumer groups is reached."""

    code = "too_many_groups"
    advice = "Raise max_groups, delete groups that are not needed any more, or share a group."


class TooManySubscriptions(StoreError):
    """The limit of subscriptions is reached."""

    code = "too_many_subscriptions"
    advice = "Close idle subscriptions, or raise credit instead of opening more."


class BadTime(StoreError):
    """A time is negative or after the year 9999."""

    code = "bad_time"
    advice = "Give milliseconds since 1970 in UTC, up to 253402300799999."


class BadTopicSettings(StoreError):
    """A setting of a topic cannot be used; none of them was changed."""

    code = "bad_topic_settings"
    advice = "Correct the setting that the message names; `tickwheel topics set --help` lists them all."


class TopicExists(StoreError):
    """There is a topic of this name already."""

    code = "topic_exists"
    advice = "Use another name, or change the one that is there: `tickwheel topics set`."


class BadTransactionId(StoreError):
    """A transaction's id is not 16 bytes, or all of them are zero."""

    code = "bad_request"
    advice = "Give each transaction 16 random bytes of its own."


class TransactionRefused(StoreError):
    """A part of a transaction could not be done, so nothing of it was."""

    code = "transaction_refused"
    advice = "Correct the part that the message names, then commit a new transaction."

    def __init__(self, text: str = "", *, index: int = 0, message_id: int = 0, reason: str = "") -> None:
        """``index``: which message of the send, or of those that are acked or changed together; ``message_id``: which
        one is there already, or is acked or changed; 0: none."""
        super().__init__(text)
        self.index, self.message_id, self.reason = index, message_id, reason


class TransactionTooLarge(StoreError):
    """A transaction does not fit into one commit record."""

    code = "transaction_too_large"
    advice = "Split it, or raise max_frame_bytes and segment_bytes (the latter for new directories)."


class BadJob(StoreError):
    """Segments that were prepared for bulk scheduling cannot be taken in; nothing of them was."""

    code = "bad_job"
    advice = (
        "Prepare the job again with this broker's plan; its messages can be prepared as often as it takes."
    )


class TooManyRejects(BadJob):
    """More messages of a job have a key that another one has than may be; nothing of the job was taken in."""

    code = "too_many_rejects"
    advice = "Take those messages out of the job, or let more of them be rejected."


class OtherLog(StoreError):
    """Messages of another broker's log are meant; nothing was changed."""

    code = "other_log"
    advice = "Message numbers mean something in one log only: name the broker that has the messages."


class BackupTargetInUse(StoreError):
    """There is something already where a backup, or a restored directory, should go."""

    code = "not_empty"
    advice = "Name a directory that is empty or not there yet."


class BadBackup(StoreError):
    """A backup is damaged or not finished; nothing was restored from it."""

    code = "bad_backup"
    advice = "Use another backup; `tickwheel restore BACKUP --verify` tells whether one is whole."
