"""Builds the extension ``tickwheel_gateway._wire``. `native/extension.py` says how."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "native"))
from extension import Extension  # noqa: E402

GATEWAY = HERE.parents[1]
EXTENSION = Extension(
    "tickwheel_gateway._wire", HERE, ("wire.h",), GATEWAY / "tickwheel_gateway" / "_wire.pyi"
)

ffi = EXTENSION.make_ffi(ROOT)

if __name__ == "__main__":
    EXTENSION.write_stub("gateway/native/wire/build.py")
    EXTENSION.make_ffi(GATEWAY).compile(tmpdir=str(GATEWAY), verbose=True)
