"""Disks that become really full: a small tmpfs, and one whose allocator refuses."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from timerlog.errors import DiskFull
from timerlog.files.disk import FileSegment
from timerlog.files.mapped_file import Region


@contextmanager
def small_tmpfs(path: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of so many bytes. Skips the test where none can be mounted."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount program")
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(ballast: Path) -> None:
    """Makes a file larger until nothing else fits beside it."""
    with ballast.open("ab", buffering=0) as file:
        block = bytes(1 << 20)
        while block:
            try:
                file.write(block)
            except OSError:
                block = block[: len(block) // 2]


def used_bytes(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


@contextmanager
def limited_disk(directory: Path, size_bytes: int) -> Iterator[Path]:
    """Tables, log and what is held may take so many bytes together, and no more."""
    directory.mkdir()
    file_allocate, region_allocate = FileSegment.allocate, Region._allocate

    def check(more_bytes: int) -> None:
        if used_bytes(directory) + max(0, more_bytes) > size_bytes:
            raise DiskFull("full")

    def of_file(file: FileSegment, end: int) -> None:
        check(end - file.size_bytes)
        file_allocate(file, end)

    def of_region(region: Region, fd: int, target: int) -> None:
        check(target - region.allocated_bytes)
        region_allocate(region, fd, target)

    with (
        mock.patch.object(FileSegment, "allocate", of_file),
        mock.patch.object(Region, "_allocate", of_region),
    ):
        yield directory
