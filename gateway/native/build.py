"""Builds the extension ``tickwheel_gateway._http2``, where nghttp2 is. `native/extension.py` says how.

``TICKWHEEL_NGHTTP2=require`` ends the build where it is not; ``off`` leaves the extension out.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "native"))
from extension import Extension  # noqa: E402

EXTENSION = Extension(
    "tickwheel_gateway._http2",
    HERE,
    ("http2.h",),
    HERE.parent / "tickwheel_gateway" / "_http2.pyi",
    libraries=("nghttp2",),
)
_TRIAL = """
#include <nghttp2/nghttp2.h>
#if NGHTTP2_VERSION_NUM < 0x012900
#error "older than 1.41"
#endif
int main(void) { return nghttp2_version(0) == 0; }
"""


def is_there() -> bool:
    """Whether a program can be made with nghttp2, 1.41 or later."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / "trial.c"
        trial.write_text(_TRIAL)
        command = [*compiler, str(trial), "-o", str(Path(folder) / "trial"), "-lnghttp2"]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            return False


def is_wanted() -> bool:
    """Whether to build it. Ends the build where it is required and cannot be."""
    wish = os.environ.get("TICKWHEEL_NGHTTP2", "")
    if wish not in ("", "require", "off"):
        raise SystemExit(f"TICKWHEEL_NGHTTP2 is 'require' or 'off', not {wish!r}")
    if wish == "off":
        return False
    if is_there():
        return True
    if wish == "require":
        raise SystemExit(
            "nghttp2 (1.41 or later) is not here; on Debian and Ubuntu: apt-get install libnghttp2-dev"
        )
    return False


ffi = EXTENSION.make_ffi(ROOT)

if __name__ == "__main__":
    EXTENSION.write_stub("gateway/native/build.py")
    if is_wanted():
        EXTENSION.make_ffi(HERE.parent).compile(tmpdir=str(HERE.parent), verbose=True)
    else:
        print("The gateway serves HTTP/2 by h2: nghttp2 is not here, or not wanted.")
