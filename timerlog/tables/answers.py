"""The answers that were given to requests, so that one which a client repeats is answered again and not done again.

A client numbers its requests that change something, and each of its sessions has a number of its own, which it drew at
random. The answer goes into the log in the same group of records as the change, so that a crash leaves both or
neither (as in RIFL: C. Lee et al., "Implementing Linearizability at Large Scale and Low Latency", SOSP 2015). It is
kept until the client says that it has it (each request names the lowest number that its session still waits for), or
until there is no more room: then the sessions that were quiet for longest go first, and the position of the newest
answer that went is kept. A repetition of a request that was made first when the log was beyond that position cannot
have been forgotten; of an older one nothing is known.

Everything follows from the records in the log, so a replay remembers the same.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from timerlog.commitlog.records import AnsweredRecord

MAX_ANSWERS: Final = 20_000
MAX_BYTES: Final = 4 * 1024 * 1024
#: At most this part of a segment: each begins with everything small, these answers among it.
SEGMENT_SHARE: Final = 16
WHOLE: Final = -1  #: the number of the part that is the whole answer
_ENTRY_BYTES: Final = 64
_PACK_FROM_BYTES: Final = 512


class Answer(msgspec.Struct, array_like=True):
    """What is remembered of one request. Until the whole answer is there, the parts say how far it was carried out."""

    at: int
    frame_type: int = 0
    content: bytes = b""
    is_packed: bool = False
    is_whole: bool = False
    parts: dict[int, tuple[bytes, bool]] = {}

    @property
    def payload(self) -> bytes:
        """The whole answer, as it was sent."""
        return _unpacked(self.content, self.is_packed)

    def steps(self) -> list[Any]:
        """What the steps before a crash decided, in order."""
        found: list[Any] = []
        for part in sorted(self.parts):
            found += msgspec.msgpack.decode(_unpacked(*self.parts[part]))
        return found

    @property
    def size_bytes(self) -> int:
        """What it counts."""
        parts_bytes = sum(32 + len(content) for content, _ in self.parts.values()) if self.parts else 0
        return _ENTRY_BYTES + len(self.content) + parts_bytes


class SessionAnswers(msgspec.Struct, array_like=True):
    """The answers of one session by the numbers of their requests."""

    session: int
    #: What was answered up to this position of the log may have been forgotten.
    forgotten_position: int
    unanswered_from: int
    answers: dict[int, Answer]


class AnswersBase(msgspec.Struct, frozen=True, array_like=True):
    """Everything, for a checkpoint and for the start of a segment; the quietest session comes first."""

    forgotten_position: int = 0
    sessions: list[SessionAnswers] = []


class RememberedAnswers:
    """See the module."""

    def __init__(
        self, segment_bytes: int = MAX_BYTES * SEGMENT_SHARE, max_answers: int = MAX_ANSWERS
    ) -> None:
        self._max_bytes = min(MAX_BYTES, segment_bytes // SEGMENT_SHARE)
        self._max_answers = max_answers
        self._sessions: OrderedDict[int, SessionAnswers] = OrderedDict()
        self.forgotten_position = 0
        self.count = self.size_bytes = 0

    def find(self, session: int, number: int) -> Answer | None:
        """None: nothing is known of this request."""
        known = self._sessions.get(session)
        return None if known is None else known.answers.get(number)

    def is_over(self, session: int, number: int) -> bool:
        """Whether the client has said that it does not wait for this request any more."""
        known = self._sessions.get(session)
        return known is not None and number < known.unanswered_from

    def is_surely_undone(self, session: int, number: int, since: int) -> bool:
        """Whether a repeated request of which nothing is known was never carried out. ``since``: a position at which
        the log was when it was made first."""
        known = self._sessions.get(session)
        if known is None:
            return since > self.forgotten_position
        return not self.is_over(session, number) and since > known.forgotten_position

    def add(self, record: AnsweredRecord) -> None:
        """It was answered."""
        known = self._sessions.get(record.session)
        if known is None:
            known = SessionAnswers(record.session, self.forgotten_position, record.unanswered_from, {})
            self._sessions[record.session] = known
        self._sessions.move_to_end(record.session)
        if record.unanswered_from > known.unanswered_from:
            known.unanswered_from = record.unanswered_from
            # They stand nearly in order; one that does not goes a little later.
            while (first := next(iter(known.answers), record.number)) < record.unanswered_from:
                self._drop(known, first)
        answer = known.answers.get(record.number)
        if answer is None:
            answer = known.answers[record.number] = Answer(record.at, parts={})
            self.count += 1
        else:
            self.size_bytes -= answer.size_bytes
        answer.at, answer.frame_type = record.at, record.frame_type
        if record.part == WHOLE:
            answer.content, answer.is_packed, answer.is_whole = record.content, record.is_packed, True
            answer.parts = {}
        else:
            answer.parts[record.part] = record.content, record.is_packed
        self.size_bytes += answer.size_bytes
        self._make_room()
        assert self.size_bytes >= self.count * _ENTRY_BYTES, "each answer that is kept counts"

    def _drop(self, known: SessionAnswers, number: int) -> int:
        answer = known.answers.pop(number)
        self.count -= 1
        self.size_bytes -= answer.size_bytes
        assert min(self.count, self.size_bytes) >= 0, "what is forgotten was counted"
        return answer.at

    def _make_room(self) -> None:
        while self._is_too_much and len(self._sessions) > 1:
            _, quietest = self._sessions.popitem(last=False)
            for number in list(quietest.answers):
                self.forgotten_position = max(self.forgotten_position, self._drop(quietest, number))
        if self._is_too_much:
            (last,) = self._sessions.values()
            while self._is_too_much and len(last.answers) > 1:
                at = self._drop(last, next(iter(last.answers)))
                self.forgotten_position = max(self.forgotten_position, at)
            last.forgotten_position = max(last.forgotten_position, self.forgotten_position)

    @property
    def _is_too_much(self) -> bool:
        return self.count > self._max_answers or self.size_bytes > self._max_bytes

    def dump(self) -> AnswersBase:
        """Everything, for a checkpoint; to be used before anything is added."""
        return AnswersBase(self.forgotten_position, list(self._sessions.values()))

    def load(self, base: AnswersBase) -> None:
        """What ``dump`` gave."""
        self._sessions = OrderedDict((known.session, known) for known in base.sessions)
        self.forgotten_position = base.forgotten_position
        answers = [answer for known in base.sessions for answer in known.answers.values()]
        self.count = len(answers)
        self.size_bytes = sum(answer.size_bytes for answer in answers)


class RequestName(NamedTuple):
    """By what a request is known again."""

    session: int
    number: int
    unanswered_from: int


class Answering:
    """The answer that is being made to a request: what is decided goes into the log with the change that follows.

    The code that carries the request out says by ``expect`` how the store's results become an answer; the store calls
    ``decided`` with them just before it writes what makes them true.
    """

    def __init__(self, name: RequestName, frame_type: int, known: Answer | None = None) -> None:
        """``known``: what an earlier try, which was interrupted, did of it."""
        self.name = name
        self.frame_type = frame_type
        self.done: list[Any] = [] if known is None else known.steps()
        self._next_part = 0 if known is None else len(known.parts)
        self._encode: Callable[[Any], bytes] | None = None
        self._in_steps = False
        self._shape: Callable[[Any], Any] = _as_it_is
        self.decisions = 0
        """How many results there were."""
        self._decided: list[Any] = []
        self._written: bytes | None = None

    def expect(self, encode: Callable[[Any], bytes]) -> None:
        """The next result is the whole answer."""
        self._encode, self._in_steps, self._shape = encode, False, _as_it_is

    def expect_steps(self, shape: Callable[[Any], Any] | None = None) -> None:
        """Each result is a step of the answer; ``shape`` makes a plain value of it."""
        self._encode, self._in_steps, self._shape = msgspec.msgpack.encode, True, shape or _as_it_is

    def decided(self, result: Any) -> None:
        """This is what comes of the change that is written next."""
        if self._encode is not None:
            self._decided.append(self._shape(result))
            self.decisions += 1

    def forget_decided(self) -> None:
        """It was not written after all."""
        self._decided.clear()

    @property
    def has_decided(self) -> bool:
        """Whether something is decided that is not in the log."""
        return bool(self._decided)

    def says(self, payload: bytes) -> bool:
        """Whether this very answer is in the log."""
        return self._written == payload

    def record(self, at: int) -> AnsweredRecord:
        """What is decided, to be written now."""
        assert self._encode is not None, "nothing is decided before it is known what it looks like"
        assert self._decided, "what is written was decided"
        if self._in_steps:
            return self._record(at, self._next_part, self._encode(self._decided))
        return self._record(at, WHOLE, self._encode(self._decided[-1]))

    def whole(self, at: int, payload: bytes) -> AnsweredRecord:
        """The whole answer, when nothing else is left to be written."""
        return self._record(at, WHOLE, payload)

    def _record(self, at: int, part: int, content: bytes) -> AnsweredRecord:
        packed = zlib.compress(content, 1) if len(content) >= _PACK_FROM_BYTES else content
        is_packed = len(packed) < len(content)
        kept = packed if is_packed else content
        return AnsweredRecord(*self.name, at, self.frame_type, part, kept, is_packed)

    def written(self, record: AnsweredRecord) -> None:
        """The record is in the log."""
        assert record.part in (WHOLE, self._next_part), "parts are written in their order"
        self._decided.clear()
        if record.part == WHOLE:
            self._written = _unpacked(record.content, record.is_packed)
        else:
            self._next_part = record.part + 1


def _as_it_is(result: Any) -> Any:
    return result


def _unpacked(content: bytes, is_packed: bool) -> bytes:
    try:
        return zlib.decompress(content) if is_packed else content
    except zlib.error as error:
        raise ValueError(f"an answer cannot be unpacked: {error}") from None
