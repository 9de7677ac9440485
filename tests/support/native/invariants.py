"""The invariants of ``fuzz/invariants.c``, which the fuzz targets check too, for tests in Python."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fuzz.run import FLAGS, HERE, native_sources
from tickwheel_native import ffi


@cache
def _library() -> ctypes.CDLL:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("there is no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "invariants.so"
        sources = [HERE / "invariants.c", *native_sources()]
        command = [compiler, *FLAGS, "-shared", "-fPIC", *map(str, sources), "-o", str(target)]
        subprocess.run(command, check=True)
        library = ctypes.CDLL(str(target))
    library.broken_invariant.restype = ctypes.c_char_p
    library.broken_invariant.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return library


def broken_invariant(store: Any, *, check_log: bool) -> str:
    """What does not hold of a ``tw_store`` between two calls, in words; empty when everything does."""
    found = _library().broken_invariant(int(ffi.cast("uintptr_t", store)), check_log)
    return found.decode() if found else ""
