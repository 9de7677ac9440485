"""Builds the extension ``tickwheel_native._native``. `extension.py` says how."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from extension import Extension  # noqa: E402

FOR_C_ALONE = {"tw_assert.h", "rows.h"}

EXTENSION = Extension(
    "tickwheel_native._native",
    HERE,
    tuple(sorted(path.name for path in HERE.glob("*.h") if path.name not in FOR_C_ALONE)),
    HERE / "tickwheel_native" / "_native.pyi",
    libraries=("pthread",),
)

ffi = EXTENSION.make_ffi(HERE.parent)

if __name__ == "__main__":
    EXTENSION.write_stub("native/build.py")
    EXTENSION.make_ffi(HERE).compile(tmpdir=str(HERE), verbose=True)
