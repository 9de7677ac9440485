"""The writer's side of bulk jobs by Arrow Flight, against a server of a few lines that fails as real servers do."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.flight as fl
import pytest

from tickwheel.arrow import jobs, network
from tickwheel.arrow.errors import DataError
from tickwheel.arrow.jobs import ADOPT_JOB, CHUNK_BYTES, AdoptAnswer, Run, Stored
from tickwheel.arrow.network import Flights
from tickwheel.client.admin.pipeline import AdoptResult, JobRefused
from tickwheel.errors import BadJob, DiskFull, NotConnected, TickwheelError

JOB, RUN = "0" * 32, "1" * 32
RESULT = AdoptResult(7, 2, [("k", "t", 3)], repeated=False, inside=1)


class Server(fl.FlightServerBase):  # type: ignore[misc]
    """Does what is next in ``plan`` with each call: nothing (it goes well), an error's code, or a number of seconds in
    which it says nothing."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.plan: list[str | float] = []
        self.calls: list[Any] = []
        self.sizes: list[int] = []
        self.answer = AdoptAnswer(RESULT)

    def next(self, context: Any) -> str:
        what = self.plan.pop(0) if self.plan else ""
        if isinstance(what, float):
            while not context.is_cancelled():
                pass
            return ""
        if what not in ("", "silent", "cut"):
            told = {"code": what, "message": "It went wrong.", "advice": "", "retryable": False}
            raise fl.FlightServerError("no matter", extra_info=msgspec.json.encode(told))
        return what

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        count = checksum = 0
        self.calls.append(descriptor.path)
        for number, chunk in enumerate(iter(lambda: _next(reader), None)):
            if number == 0:
                what = self.next(context)
            if chunk.data is None:
                assert msgspec.json.decode(chunk.app_metadata.to_pybytes(), type=Stored) == Stored(
                    count, checksum
                )
                continue
            data = chunk.data.column(0)[0].as_buffer()
            self.sizes.append(len(data))
            count += len(data)
            checksum = zlib.crc32(data, checksum)
        if what == "cut":
            count -= 1
        if what != "silent":
            writer.write(msgspec.json.encode(Stored(count, checksum)))

    def do_action(self, context: Any, action: Any) -> Any:
        self.calls.append((action.type, msgspec.json.decode(action.body.to_pybytes())))
        self.next(context)
        return iter([fl.Result(msgspec.json.encode(self.answer if action.type == ADOPT_JOB else True))])


def _next(reader: Any) -> Any:
    try:
        return reader.read_chunk()
    except StopIteration:
        return None


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        yield found


@pytest.fixture
def run(server: Server, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(jobs, "_RETRY_S", 0.01)
    return Run(Flights(f"grpc://127.0.0.1:{server.port}", token=""), JOB, RUN)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "file"
    found.write_bytes(os.urandom(CHUNK_BYTES * 2 + 100))
    return found


def test_a_file_goes_in_pieces(server: Server, run: Run, file: Path, tmp_path: Path) -> None:
    content = file.read_bytes()
    assert run.put(file, "name") == Stored(len(content), zlib.crc32(content))
    assert server.sizes == [CHUNK_BYTES, CHUNK_BYTES, 100]
    assert server.calls == [[b"staging", JOB.encode(), b"name"]]
    empty = tmp_path / "empty"
    empty.touch()
    assert run.put(empty, "empty") == Stored(0, 0)


@pytest.mark.parametrize("code", ["not_connected", "shutting_down", "stood_still", "too_many_puts"])
def test_a_put_is_sent_again_while_the_other_side_is_away(
    server: Server, run: Run, file: Path, code: str
) -> None:
    server.plan = [code, "silent", code]
    assert run.put(file, "name").bytes == file.stat().st_size
    assert len(server.calls) == 4


def test_not_for_ever(server: Server, run: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PATIENCE_S", 0.0)
    server.plan = ["stood_still"]
    with pytest.raises(TickwheelError) as caught:
        run.put(file, "name")
    assert caught.value.code == "stood_still"
    with Server() as gone:
        url = f"grpc://127.0.0.1:{gone.port}"
    with pytest.raises(NotConnected):
        Run(Flights(url, token=""), JOB, RUN).put(file, "name")


@pytest.mark.parametrize(("code", "kind"), [("disk_full", DiskFull), ("bad_job", BadJob)])
def test_what_does_not_pass_is_told_at_once(
    server: Server, run: Run, file: Path, code: str, kind: type[TickwheelError]
) -> None:
    server.plan = [code]
    with pytest.raises(kind):
        run.put(file, "name")
    assert len(server.calls) == 1


def test_an_answer_about_another_file_is_not_believed(server: Server, run: Run, file: Path) -> None:
    server.plan = ["cut"]
    with pytest.raises(DataError, match="and sent as"):
        run.put(file, "name")


def test_a_long_adoption_is_asked_for_again(
    server: Server, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_ADOPT_S", 0.2)
    server.plan = [1.0, 1.0]
    assert run.adopt(5) == RESULT
    assert server.calls == [(ADOPT_JOB, {"job": JOB, "run": RUN, "max_rejects": 5})] * 3


def test_a_refusal(server: Server, run: Run) -> None:
    server.answer = AdoptAnswer(RESULT, is_refused=True)
    with pytest.raises(JobRefused, match="2 messages have a key") as caught:
        run.adopt(1)
    assert caught.value.result == RESULT


def test_who_is_gone_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "PATIENCE_S", 0.0)
    with Server() as gone:
        url = f"grpc://127.0.0.1:{gone.port}"
    run = Run(Flights(url, token=""), JOB, RUN)
    with pytest.raises(NotConnected):
        run.adopt(0)
    with pytest.raises(NotConnected):
        run.drop()
