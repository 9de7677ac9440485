"""The archive's directory: names that no topic can break, manifests that count or do not, and what crashes leave."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwheel.spark.archive.directory import DirectoryArchive
from tickwheel.spark.archive.manifest import (
    OURS,
    FileEntry,
    Manifest,
    Outcome,
    escaped,
    new_run,
    partition,
)
from tickwheel.spark.errors import ArchiveBusy, ArchiveDamaged, ArchiveError
from tickwheel.spark.storage import DirectoryFiles

RUN = "20310601T020000Z-00000001"
NAME = "topic=t/date=2031-05-01/f.zstd.parquet"


def manifest(run: str = RUN, *names: str) -> Manifest:
    entry = {
        "topic": "t",
        "rows": 1,
        "bytes": 4,
        "checksum": "0" * 16,
        "ids_checksum": "0" * 16,
        "first_deliver_ms": 0,
        "last_deliver_ms": 0,
    }
    files = [FileEntry(name=name, **entry) for name in names or (NAME,)]  # type: ignore[arg-type]
    return Manifest(
        format=1, run=run, log_id="0" * 16, created_ms=1, done_before_ms=1, states=["acked"], files=files
    )


def at(root: Path) -> DirectoryArchive:
    return DirectoryArchive(DirectoryFiles(root))


def staging(root: Path) -> Path:
    return root / OURS / "staging"


def staged(root: Path, run: str = RUN, name: str = NAME) -> Path:
    path = staging(root) / run / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"data")
    return path


@given(st.text())
def test_escaped_names_are_plain_and_come_back(topic: str) -> None:
    name = escaped(topic)
    assert "/" not in name
    assert "=" not in name
    assert name.isascii()
    assert unquote(name) == topic


def test_names() -> None:
    assert partition("orders", 0) == "topic=orders/date=1970-01-01"
    assert partition("../etc", 22_401) == "topic=..%2Fetc/date=2031-05-02"
    assert new_run(1_938_132_000_000, b"\x01\x02\x03\x04") == "20310602T020000Z-01020304"


def test_a_run_from_its_files_to_its_end(tmp_path: Path) -> None:
    root = tmp_path / "new" / "archive"
    archive = at(root)
    with pytest.raises(ArchiveError, match="does not exist"):
        archive.check()
    with archive.locked():
        archive.check()
        staged(root)
        assert archive.manifests() == []
        archive.commit(manifest())
        (found,) = archive.manifests()
        assert found == manifest()
        assert archive.name(found, found.files[0]) == f"{OURS}/staging/{RUN}/{NAME}"
        assert archive.outcome(found) is None
        for _ in range(2):  # also after a crash in between
            archive.publish(found)
            assert archive.name(found, found.files[0]) == NAME
        outcome = Outcome(dropped=1, gone=2, kept=[(3, 4)])
        archive.finish(found, outcome)
        assert archive.outcome(found) == outcome
    assert not (staging(root) / RUN).exists()
    assert (root / NAME).read_bytes() == b"data"


def test_a_publication_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    archive = at(tmp_path)
    other = NAME.replace("f.", "g.")
    with archive.locked():
        for name in (NAME, other):
            staged(tmp_path, name=name)
        archive.commit(manifest(RUN, NAME, other))
        (tmp_path / NAME).parent.mkdir(parents=True)
        ((staging(tmp_path) / RUN) / NAME).rename(tmp_path / NAME)
        assert archive.remove_orphans() == 0
        archive.publish(manifest(RUN, NAME, other))
    assert all((tmp_path / name).is_file() for name in (NAME, other))


def test_orphans_are_removed_and_nothing_else(tmp_path: Path) -> None:
    archive = at(tmp_path)
    with archive.locked():
        staged(tmp_path, "crashed")
        staged(tmp_path)
        archive.commit(manifest())
        (tmp_path / OURS / "runs" / ".half.json").write_bytes(b"{")
        assert archive.remove_orphans() == 1
        assert [path.name for path in staging(tmp_path).iterdir()] == [RUN]
        archive.publish(manifest())
        archive.finish(manifest(), Outcome(dropped=1, gone=0, kept=[]))
        staged(tmp_path, name="late attempt")
        assert archive.remove_orphans() == 1
    assert (tmp_path / NAME).is_file()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    archive = at(tmp_path)
    with pytest.raises(ArchiveDamaged, match=r"f\.zstd\.parquet is missing"):
        archive.name(manifest(), manifest().files[0])


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 1}', b"\xff\xfe"])
def test_a_manifest_that_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    archive = at(tmp_path)
    with archive.locked():
        (tmp_path / OURS / "runs" / f"{RUN}.json").write_bytes(content)
        with pytest.raises(ArchiveDamaged, match=RUN):
            archive.manifests()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    import msgspec

    archive = at(tmp_path)
    with archive.locked():
        archive.commit(msgspec.structs.replace(manifest(), format=2))
    with pytest.raises(ArchiveError, match="format 2"):
        archive.manifests()


def _try(root: str, answer: multiprocessing.Queue[str]) -> None:
    try:
        with at(Path(root)).locked():
            answer.put("locked")
    except ArchiveBusy:
        answer.put("busy")


@pytest.mark.promise("what-is-archived")
def test_one_process_at_a_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    archive = at(tmp_path)
    with archive.locked():
        with pytest.raises(ArchiveBusy), archive.locked():
            pass
        process = context.Process(target=_try, args=(str(tmp_path), answer))
        process.start()
        assert answer.get(timeout=60) == "busy"
        process.join()
    with archive.locked():
        pass
