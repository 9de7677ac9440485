"""Why a request, or a part of it, was refused."""

from __future__ import annotations

from collections.abc import Mapping

from tickwheel.protocol.errors.base import TickwheelError


class BadRequest(TickwheelError):
    """A request was not understood; nothing was done."""

    code = "bad_request"
    advice = "Correct the request; the message says which field is wrong."


class UnknownTopic(TickwheelError):
    """The topic does not exist."""

    code = "unknown_topic"
    advice = "Check its name: `tickwheel topics` lists them all."


class BadTopicName(TickwheelError, ValueError):
    """The name of a topic or group is not allowed."""

    code = "bad_topic_name"
    advice = "Use 1 to 128 (a topic: 123) letters, digits, dots, underscores and hyphens; the first a letter or digit."


class TooManyTopics(TickwheelError):
    """The broker has as many topics as it allows."""

    code = "too_many_topics"
    advice = "Raise max_topics, or use fewer topics and more keys."


class TooManyGroups(TickwheelError):
    """The broker has as many groups, of all topics together, as it allows."""

    code = "too_many_groups"
    advice = "Raise max_groups, delete groups that are not needed any more, or share a group."


class GroupInUse(TickwheelError):
    """The group has subscribers."""

    code = "group_in_use"
    advice = "Stop its subscribers first; `tickwheel groups` shows how many there are."


class TooManySubscriptions(TickwheelError):
    """The broker has as many subscriptions as it allows."""

    code = "too_many_subscriptions"
    advice = "Leave subscriptions that are no longer needed, or raise max_subscriptions on the broker."


class BadTime(TickwheelError, ValueError):
    """The time of delivery is not allowed."""

    code = "bad_time"
    advice = "Use a time from 1970 to the end of the year 9999, or a delay of zero or more."


class NaiveDatetime(BadTime):
    """A datetime without a time zone does not say which moment it means."""

    code = "naive_datetime"
    advice = "Use an aware one: datetime.now(UTC), or datetime(..., tzinfo=ZoneInfo('Europe/Paris'))."


class BodyTooLarge(TickwheelError, ValueError):
    """The body of a message is larger than the broker allows."""

    code = "body_too_large"
    advice = (
        "Store large data elsewhere and send a reference, or raise the broker's max_body_bytes (to 16 MiB)."
    )


class KeyTooLong(TickwheelError, ValueError):
    """A key has more than 255 bytes."""

    code = "key_too_long"
    advice = "Use a shorter key, for instance a hash of the long one."


class HeadersTooLarge(TickwheelError, ValueError):
    """The headers of a message have more than 32 KiB."""

    code = "headers_too_large"
    advice = "Put large values into the body."


class UnknownGroup(TickwheelError):
    """There is no such group."""

    code = "unknown_group"
    advice = (
        "`tickwheel groups` lists them all; the first subscription makes one, or `tickwheel groups create`."
    )


class UnknownShard(TickwheelError):
    """The topic has no such shard."""

    code = "unknown_shard"
    advice = "Name one exactly as `tickwheel topics show` lists it, such as -80; or none, for all of them."


class BadTopicSettings(TickwheelError, ValueError):
    """A setting of a topic cannot be used; none of them was changed."""

    code = "bad_topic_settings"
    advice = "Correct the setting that the message names; `tickwheel topics set --help` lists them all."


class TopicExists(TickwheelError):
    """There is a topic of this name already, and it has other settings."""

    code = "topic_exists"
    advice = "Use another name, or change the one that is there: `tickwheel topics set`."


class TopicInUse(TickwheelError):
    """The topic cannot be deleted while it has subscribers, schedules that send to it, or endpoints."""

    code = "topic_in_use"
    advice = "End its subscriptions first; `tickwheel topics` shows how many there are."


class BadJob(TickwheelError):
    """What was prepared for bulk scheduling cannot be taken in; nothing of it was."""

    code = "bad_job"
    advice = (
        "Prepare the job again with this broker's plan; its messages can be prepared as often as it takes."
    )


class TooManyRejects(BadJob):
    """More messages of a job cannot be taken in than were allowed to fail; none of it was."""

    code = "too_many_rejects"
    advice = "Mend or leave out those messages, or allow more of them to be rejected."


class OtherLog(TickwheelError):
    """Messages of another broker's log are meant; nothing was changed."""

    code = "other_log"
    advice = "Message numbers mean something in one log only: name the broker that has the messages."


class BadSchedule(TickwheelError, ValueError):
    """A schedule cannot be used."""

    code = "bad_schedule"
    advice = "Correct what the message names; docs/how-to/schedules.md has examples."


class ScheduleExists(TickwheelError):
    """There is a schedule of this name already, and it has other settings."""

    code = "schedule_exists"
    advice = "Use another name, or change the one that is there: `tickwheel schedules set`."


class UnknownSchedule(TickwheelError):
    """There is no such schedule."""

    code = "unknown_schedule"
    advice = "`tickwheel schedules list` lists them all."


class TooManySchedules(TickwheelError):
    """The broker has as many schedules as it can keep."""

    code = "too_many_schedules"
    advice = "Delete schedules that are not needed any more."


class BadEndpoint(TickwheelError, ValueError):
    """An endpoint cannot be used."""

    code = "bad_endpoint"
    advice = "Correct what the message names; docs/how-to/push.md has examples."


class UnknownEndpoint(TickwheelError):
    """There is no such endpoint."""

    code = "unknown_endpoint"
    advice = "`tickwheel endpoints list` lists them all; to make one, give its topic and its URL."


class EndpointChanged(TickwheelError):
    """The endpoint is not of the expected version any more; nothing was changed."""

    code = "endpoint_changed"
    advice = "Look at it again, and repeat the change with the version that it has now."


class EndpointInUse(TickwheelError):
    """The group of an endpoint cannot be deleted: it is served, or the endpoint is still there."""

    code = "endpoint_in_use"
    advice = "Disable the endpoint, wait until its group has no subscribers, and delete it then; or keep the group."


class TooManyEndpoints(TickwheelError):
    """The broker has as many endpoints as it can keep."""

    code = "too_many_endpoints"
    advice = "Delete endpoints that are not needed any more."


class UrlNotAllowed(TickwheelError, ValueError):
    """No endpoint of the topic allows tasks for this URL."""

    code = "url_not_allowed"
    advice = "Whoever runs the broker can allow it: `tickwheel endpoints set NAME --allow-url https://host/path/*`."


class TransactionRefused(TickwheelError):
    """A part of the transaction could not be done, so nothing of it was."""

    code = "transaction_refused"
    advice = "Correct the part that the message names, then commit a new transaction."

    @property
    def part(self) -> str:
        """send, ack, cancel or reschedule; empty: the broker is too old to say, or it was about a prepared message."""
        return str(self.details.get("part", ""))

    @property
    def index(self) -> int | None:
        """Which message of that part, in the order in which they were added, from 0 on."""
        index = self.details.get("index")
        return index if isinstance(index, int) else None

    @property
    def id(self) -> int | None:
        """The message that cannot be acked or changed, or the one that has the key already."""
        message_id = self.details.get("id")
        return message_id if isinstance(message_id, int) else None

    @property
    def key(self) -> str | None:
        """The key that it has, or by which it was named; None: none, or not known."""
        key = self.details.get("key")
        return key if isinstance(key, str) else None

    @property
    def reason(self) -> str:
        """As in the answers to sends, acks, cancels: ``duplicate``, ``stale_receipt``, ``already_delivered`` …"""
        return str(self.details.get("reason", ""))


class TransactionTooLarge(TickwheelError):
    """The transaction does not fit into one commit record."""

    code = "transaction_too_large"
    advice = "Split it, or raise max_frame_bytes and segment_bytes (the latter for new directories)."


class OrderKeyTooLong(TickwheelError, ValueError):
    """An ordering key is longer than 255 bytes."""

    code = "order_key_too_long"
    advice = "Use a shorter key, or a hash of it."


class DiskFull(TickwheelError):
    """The broker's disk is full; nothing was accepted."""

    code = "disk_full"
    advice = "Free space or extend the disk; deliveries and acks go on, sends work again once there is room."
    retryable = True


class ShuttingDown(TickwheelError):
    """The broker is stopping; nothing was accepted."""

    code = "shutting_down"
    advice = "Send again when it is back."
    retryable = True


class NotOwner(TickwheelError):
    """Another node of the cluster serves; nothing was done."""

    code = "not_owner"
    advice = "Give the client the URLs of all nodes: it finds the one that serves."
    retryable = True

    @property
    def url(self) -> str:
        """Where the node is that serves; empty: the one that was asked does not know it."""
        return str(self.details.get("url", ""))

    @classmethod
    def naming(cls, url: str) -> NotOwner:
        """The error of a node that knows which one serves, or (an empty URL) does not."""
        error = cls()
        if url:
            error.details = {"url": url}
        return error


class InternalError(TickwheelError):
    """The broker met a defect of its own."""

    code = "internal"
    advice = "The broker's log has the details; please report it."


class ServerError(TickwheelError):
    """The broker answered with an error that this version does not know by name."""

    code = "server_error"
    advice = "Upgrade the client to learn more."


# Acks ----------------------------------------------------------------------------------------------


class AckRefused(TickwheelError):
    """The broker refused an ack."""

    code = "ack_refused"
    advice = "The message will be, or was, delivered again; make its processing idempotent."

    refused: Mapping[int, str]
    """Message id to code, of every ack that was refused."""

    def __init__(
        self,
        message: str | None = None,
        *,
        advice: str | None = None,
        refused: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(message, advice=advice)
        self.refused = dict(refused or {})


class AlreadyAcked(AckRefused):
    """The message was acked before."""

    code = "already_acked"
    advice = "Nothing needs to be done."


class StaleReceipt(AckRefused):
    """The message was delivered again since; only its newest delivery can be acked."""

    code = "stale_receipt"
    advice = (
        "Its lease had ended, so it may be handled twice: make that harmless, run blocking code in threads so that the "
        "event loop turns, or raise ack_wait of the topic or max_hold of the subscription."
    )


class MessageNotFound(AckRefused):
    """The broker has no such message."""

    code = "not_found"
    advice = "It may have been purged, or cancelled, since."


class MessageCancelled(AckRefused):
    """The message was cancelled while it was being processed."""

    code = "cancelled"
    advice = "Undo its effect if you can; it is not delivered again."


class NeverDelivered(AckRefused):
    """The message was never delivered to this group."""

    code = "never_delivered"
    advice = "Ack a message only in the group that received it."


# Queries -------------------------------------------------------------------------------------------


class BadQuery(TickwheelError):
    """A query was refused; the message is that of the query engine."""

    code = "bad_query"
    advice = "Each topic is a table, `messages` is all of them; `describe messages` lists the columns."


class QueryTimeout(TickwheelError):
    """A query took longer than it may, and was ended."""

    code = "query_timeout"
    advice = "Ask for less (fewer columns, a WHERE), or give it a longer timeout."


class TooManyQueries(TickwheelError):
    """Too many queries wait for their turn already."""

    code = "too_many_queries"
    advice = "Ask again when others are done: the broker runs only a few queries at a time."
    retryable = True


class QueryUnavailable(TickwheelError):
    """The broker cannot query, because DuckDB is not installed."""

    code = "query_unavailable"
    advice = "Install what it needs where the broker runs: pip install 'tickwheel[query]'."


class QueryFailed(TickwheelError):
    """The process of a query ended without an answer."""

    code = "query_failed"
    advice = "See the broker's log for the details; a query that needs much memory should ask for less."
