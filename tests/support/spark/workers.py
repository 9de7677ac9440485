"""The Python processes of a Spark session of this process."""

from __future__ import annotations

import os
from pathlib import Path


def python_workers() -> list[int]:
    """Spark's Python processes below this process that work for tasks: children of PySpark's daemon."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                names[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            children.setdefault(int(stat[1]), []).append(int(folder.name))
    found, todo = [], [os.getpid()]
    while todo:
        pid = todo.pop()
        for child in children.get(pid, []):
            todo.append(child)
            if "pyspark.daemon" in names[child] and "pyspark.daemon" in names.get(pid, ""):
                found.append(child)
    return found
