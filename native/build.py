"""Builds the extension ``tickwheel_native._native`` (cffi, API mode, stable ABI).

Every ``*.cdef`` in this folder declares what Python may call, every ``*.c`` implements it, and the header of the
same name is included by the glue code. ``TICKWHEEL_SANITIZE=1`` builds with ASan and UBSan instead of ``-O2``.
"""

from __future__ import annotations

import os
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

WARNINGS = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
OPTIMISED = ["-O2", "-g1", "-fno-strict-aliasing"]
SANITIZED = [
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
]


def make_ffi(base: Path) -> FFI:
    """The builder; ``base`` is the folder from which the compiler will be called."""
    sanitize = os.environ.get("TICKWHEEL_SANITIZE") == "1"
    builder = FFI()
    cdefs = sorted(HERE.glob("*.cdef"))
    builder.cdef("\n".join(path.read_text() for path in cdefs))
    builder.set_source(
        "tickwheel_native._native",
        "\n".join(f'#include "{path.stem}.h"' for path in cdefs),
        # setuptools wants paths relative to the project for sdist builds.
        sources=[str(path.relative_to(base)) for path in sorted(HERE.glob("*.c"))],
        include_dirs=[str(HERE)],
        extra_compile_args=WARNINGS + (SANITIZED if sanitize else OPTIMISED),
        extra_link_args=["-fsanitize=address,undefined"] if sanitize else [],
        py_limited_api=True,
    )
    return builder


ffi = make_ffi(ROOT)

if __name__ == "__main__":
    make_ffi(HERE).compile(tmpdir=str(HERE), verbose=True)
