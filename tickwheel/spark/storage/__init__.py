"""Where the pipeline keeps files: directories, object stores and HDFS, by one set of functions.

>>> files = storage_at("s3://bucket/archive", {"endpoint": "http://127.0.0.1:9000"})
>>> files.read("_tickwheel/runs/00000001.json")
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tickwheel.spark.errors import BadPlace
from tickwheel.spark.storage.directories import DirectoryFiles
from tickwheel.spark.storage.places import Place, parse_options, parse_place
from tickwheel.spark.storage.storage import Found, NewFile, Storage

__all__ = [
    "DirectoryFiles",
    "Found",
    "NewFile",
    "Place",
    "Storage",
    "file_at",
    "is_directory",
    "parse_options",
    "parse_place",
    "storage_at",
]


def storage_at(where: str | Path, options: Mapping[str, str] | None = None) -> Storage:
    """The files at a place: a path, ``file:``, ``s3://``, ``s3a://``, ``gs://``, ``abfss://`` or ``hdfs://``, with
    options to get there. Nothing is asked yet. Raises ``BadPlace``, ``StorageMissing``."""
    place = parse_place(where, options or {})
    if place.kind == "file":
        return DirectoryFiles(Path(place.path))
    if place.kind == "hdfs":
        from tickwheel.spark.storage.hadoop import hadoop_files

        return hadoop_files(place)
    from tickwheel.spark.storage.objects import ObjectFiles, require_obstore

    require_obstore()
    return ObjectFiles(place)


def file_at(where: str | Path, options: Mapping[str, str] | None = None) -> tuple[Storage, str]:
    """The folder of a file, and the file's name in it. Raises ``BadPlace``, ``StorageMissing``."""
    place = parse_place(where, options or {})
    folder, _, name = place.shown.rpartition("/")
    if not name or (place.kind != "file" and not place.path.strip("/")):
        raise BadPlace(f"{place.shown} names no file.", advice="Name a file in it.")
    return storage_at(folder or "/", options), name


def is_directory(where: str | Path) -> bool:
    """Whether a place is on the file system of the machine, so that it takes no options. Raises ``BadPlace``."""
    return parse_place(where, {}).kind == "file"
