"""The schema is that of its source, and its bytes are those of RocketMQ's protocol."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from tests.support.rocketmq.schema import COMPILED, compiled
from tickwheel_gateway.wire import schema


def own_part(compiled: bytes) -> Any:
    """Without what it includes, in which versions of protoc differ."""
    files = descriptor_pb2.FileDescriptorSet.FromString(compiled).file
    (found,) = [file for file in files if file.package == schema.PACKAGE]
    return found


def test_the_compiled_schema_is_up_to_date() -> None:
    assert own_part(COMPILED.read_bytes()) == own_part(compiled()), "python -m tests.support.rocketmq.schema"


def test_it_does_not_meet_the_classes_of_others() -> None:
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName(f"{schema.PACKAGE}.Message")


def test_bytes_as_they_stand_in_the_protocol() -> None:
    message = schema.Message()
    message.topic.name = "t"
    message.user_properties["k"] = "v"
    message.system_properties.message_id = "01"
    message.system_properties.priority = 0
    message.body = b"x"
    expected = (
        b"\x0a\x03\x12\x01t"
        + b"\x12\x06\x0a\x01k\x12\x01v"
        + b"\x1a\x07\x1a\x0201\xb0\x01\x00"
        + b"\x22\x01x"
    )
    assert message.SerializeToString(deterministic=True) == expected
    read = schema.Message.FromString(expected)
    assert read.system_properties.HasField("priority")
    assert not read.system_properties.HasField("tag")


def test_a_code_that_is_unknown_is_read() -> None:
    answer = schema.HeartbeatResponse.FromString(b"\x0a\x03\x08\xc0\x3e")
    assert answer.status.code == 8_000


@pytest.mark.parametrize("time_ms", [0, 1, 999, 1_000, 1_900_000_000_123])
def test_times_to_the_millisecond(time_ms: int) -> None:
    properties = schema.Message().system_properties
    schema.set_milliseconds(properties.born_timestamp, time_ms)
    assert schema.milliseconds(properties.born_timestamp) == time_ms
    properties.invisible_duration.FromMilliseconds(time_ms)
    assert schema.milliseconds(properties.invisible_duration) == time_ms


@pytest.mark.parametrize(("nanos", "ms"), [(1, 1), (1_000_000, 1), (1_000_001, 2), (999_999_999, 1_000)])
def test_parts_of_a_millisecond_are_rounded_up(nanos: int, ms: int) -> None:
    properties = schema.Message().system_properties
    properties.delivery_timestamp.seconds, properties.delivery_timestamp.nanos = 1_900_000_000, nanos
    assert schema.milliseconds(properties.delivery_timestamp) == 1_900_000_000_000 + ms
