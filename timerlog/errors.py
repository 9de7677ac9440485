"""What the storage engine refuses, as typed errors with a stable code.

What a user is advised to do is said once for each code, with the class by which clients are told of it
(``tickwheel.protocol.errors``): here stands only what is more exact than that, and what clients have no class for.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: What reading MessagePack or JSON of others may raise: text that is not UTF-8, and values nested too deeply, have
#: errors of their own.
DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class StoreError(Exception):
    """The store cannot do this."""

    code = "internal"
    advice: str | None = None
    """None: that of the code."""


class DiskFull(StoreError):
    """The disk is full; nothing was accepted."""

    code = "disk_full"


class DirectoryLocked(StoreError):
    """Another broker holds the data directory."""

    code = "locked"


class DirectoryReadOnly(StoreError):
    """The data directory cannot be written."""

    code = "read_only"


class BadDirectory(StoreError):
    """The data directory cannot be used."""

    code = "bad_directory"


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


class NoAddressSpace(DiskFull):
    """The process has no addresses left into which files are mapped, or may not reserve any. The disk is in order, but
    what needs more of them is refused, as on one that is full."""

    code = "no_address_space"
    advice = (
        "Lift the limit of address space (ulimit -v unlimited; LimitAS=infinity for systemd). Addresses are reserved "
        "for tables to grow and cost no memory; to limit memory, use a control group (MemoryMax=). A process has "
        "addresses for some tens of small brokers, or for one large one: give each a process of its own."
    )


class LogAtItsEnd(DiskFull):
    """There is no position behind the last one of the log."""

    code = "log_at_its_end"
    advice = "Let this broker deliver what it has, and send to another one with a directory of its own."


class NoDataDirectory(BadDirectory):
    """What should be read is not a data directory."""

    advice = "Name the data directory of a broker."


class OtherCluster(BadDirectory):
    """The directory of a node holds another log than its cluster."""

    advice = "Check the cluster's URL. Give the node an empty directory, or the directory that it had in this cluster."


class ReplicaDirectory(BadDirectory):
    """The data directory is that of a node of a cluster: what is written beside the cluster's log would not count."""

    advice = (
        "Start it as a node: `tickwheel serve --cluster URL --node N --data DIRECTORY`. For a broker of its own with "
        "the same messages, make a backup of it and `tickwheel restore` that into another directory. There is nothing "
        "to repair in a replica: empty its directory, and the node makes it anew from the cluster."
    )


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


class LogCut(DamagedLog):
    """What a replica needs to begin was deleted from the replicated log, by none of its nodes."""

    advice = (
        "Set the topic's settings in Kafka right: tickwheel cluster status says which differ. A node that has followed "
        "to the end still starts, and serves; stop it in order, and copy its directory to the other nodes."
    )


class DamagedMark(DamagedLog):
    """The file that says to which cluster a directory belongs is damaged."""

    advice = "Move the directory away, but for tokens.json, and start the node again: it reads the log from Kafka anew."


class DamagedSharedLog(DamagedLog):
    """What several machines share as their log is damaged there."""

    advice = (
        "No directory of a node mends that. Stop the nodes, and begin a new cluster from the directory of the node "
        "that has followed furthest: `tickwheel cluster init URL --from DIRECTORY`."
    )


class DamagedReplica(DamagedLog):
    """The log in the directory of a node is damaged, and no cluster has it any more."""

    advice = "Take the directory of another node, the one that has followed furthest, or a backup of one."


class BeingHealed(DamagedLog):
    """A damaged record is being had again from the log that several machines share."""

    advice = "Try again in a moment: the node fetches the record from the cluster."


class Unrepairable(DamagedLog):
    """Nothing of a damaged directory can be saved by a repair."""

    advice = "Restore a backup: `tickwheel restore BACKUP DIRECTORY`. Nothing was changed."


class UnsupportedFormat(StoreError):
    """The files were written by another version."""

    code = "unsupported_format"


class LogFailed(StoreError):
    """Writing to the disk failed; the log accepts nothing more."""

    code = "log_failed"
    advice = "Check the disk, then restart: everything that was acknowledged is on it."


class LogFull(LogFailed):
    """The disk has no room for what was accepted: some file systems say so only when it is written. Or it was made
    read-only. The log accepts nothing more."""

    code = "disk_full"
    advice = (
        "Make room, raise the quota, or make the file system writable, then start again: everything that was "
        "acknowledged is on the disk."
    )


class UnknownTopic(StoreError):
    """There is no such topic."""

    code = "unknown_topic"


class UnknownGroup(StoreError):
    """There is no such group."""

    code = "unknown_group"


class BadName(StoreError):
    """A topic or group name must match [A-Za-z0-9][A-Za-z0-9._-]{0,127}."""

    code = "bad_topic_name"


class TooManyTopics(StoreError):
    """The limit of topics is reached."""

    code = "too_many_topics"


class TooManyGroups(StoreError):
    """The limit of consumer groups is reached."""

    code = "too_many_groups"


class TooManySubscriptions(StoreError):
    """The limit of subscriptions is reached."""

    code = "too_many_subscriptions"


class BadTime(StoreError):
    """A time is negative or after the year 9999."""

    code = "bad_time"


class BadTopicSettings(StoreError):
    """A setting of a topic cannot be used; none of them was changed."""

    code = "bad_topic_settings"


class TopicExists(StoreError):
    """There is a topic of this name already."""

    code = "topic_exists"


class BadTransactionId(StoreError):
    """A transaction's id is not 16 bytes, or all of them are zero."""

    code = "bad_request"
    advice = "Give each transaction 16 random bytes of its own."


class TransactionRefused(StoreError):
    """A part of a transaction could not be done, so nothing of it was."""

    code = "transaction_refused"

    def __init__(self, text: str = "", *, index: int = 0, message_id: int = 0, reason: str = "") -> None:
        """``index``: which message of the send, or of those that are acked or changed together; ``message_id``: which
        one is there already, or is acked or changed; 0: none."""
        super().__init__(text)
        self.index, self.message_id, self.reason = index, message_id, reason


class TransactionTooLarge(StoreError):
    """A transaction does not fit into one commit record."""

    code = "transaction_too_large"


class BadJob(StoreError):
    """Segments that were prepared for bulk scheduling cannot be taken in; nothing of them was."""

    code = "bad_job"


class TooManyRejects(BadJob):
    """More messages of a job have a key that another one has than may be; nothing of the job was taken in."""

    code = "too_many_rejects"


class OtherLog(StoreError):
    """Messages of another broker's log are meant; nothing was changed."""

    code = "other_log"


class BackupTargetInUse(StoreError):
    """There is something already where a backup, or a restored directory, should go."""

    code = "not_empty"
    advice = "Name a directory that is empty or not there yet."


class BadBackup(StoreError):
    """A backup is damaged or not finished; nothing was restored from it."""

    code = "bad_backup"
    advice = "Use another backup; `tickwheel restore BACKUP --verify` tells whether one is whole."
