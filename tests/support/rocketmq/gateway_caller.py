"""The official client of gRPC as a client of a gateway that is a process."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import grpc

from tests.support.processes.daemon_harness import PATIENCE_S
from tickwheel_gateway.wire import schema

CLIENT = (("x-mq-client-id", "host@1@0"), ("x-mq-language", "JAVA"), ("x-mq-client-version", "5.2.0"))


class Caller:
    """A client of it."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = (
            grpc.insecure_channel(address, options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options)
        )

    def begin(self, name: str, request: Any, metadata: Sequence[tuple[str, str]] = CLIENT) -> Any:
        """One call with one answer, that is not there yet."""
        response = getattr(schema, f"{name}Response")
        call = self.channel.unary_unary(
            schema.SERVICE + name, type(request).SerializeToString, response.FromString
        )
        return call.future(request, timeout=PATIENCE_S, metadata=metadata)

    def ask(self, name: str, request: Any, metadata: Sequence[tuple[str, str]] = CLIENT) -> Any:
        """And its answer."""
        return self.begin(name, request, metadata).result()

    def stream(self, name: str, request: Any, metadata: Sequence[tuple[str, str]] = CLIENT) -> Any:
        """One call with many answers."""
        response = getattr(schema, f"{name}Response")
        call = self.channel.unary_stream(
            schema.SERVICE + name, type(request).SerializeToString, response.FromString
        )
        return call(request, timeout=PATIENCE_S, metadata=metadata)

    def talk(self, metadata: Sequence[tuple[str, str]] = CLIENT) -> Talk:
        """A telemetry stream."""
        return Talk(self.channel, metadata)

    def __enter__(self) -> Caller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()


class Talk:
    """A stream of commands both ways."""

    def __init__(self, channel: grpc.Channel, metadata: Sequence[tuple[str, str]]) -> None:
        self._said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        call = channel.stream_stream(
            schema.SERVICE + "Telemetry",
            schema.TelemetryCommand.SerializeToString,
            schema.TelemetryCommand.FromString,
        )
        self.answers = call(iter(self._said.get, None), timeout=PATIENCE_S, metadata=metadata)

    def say(self, command: Any) -> Any:
        """A command, and what is answered."""
        self._said.put(command)
        return next(self.answers)

    def hang_up(self) -> None:
        """The client's end of it."""
        self._said.put(None)

    def status(self) -> Any:
        """When there are no more answers: how it has ended."""
        assert list(self.answers) == []
        return self.answers.code()


def consumer(topic: str, group: str) -> Any:
    """The settings of a push consumer."""
    command = schema.TelemetryCommand()
    settings = command.settings
    settings.client_type = schema.PUSH_CONSUMER
    settings.subscription.group.name = group
    entry = settings.subscription.subscriptions.add()
    entry.topic.name = topic
    entry.expression.expression = "*"
    return command
