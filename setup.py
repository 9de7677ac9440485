"""What pyproject.toml cannot say: the cffi extensions, and that their wheel fits every CPython from 3.11 on."""

import os
from pathlib import Path
from runpy import run_path

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, CompileError, ExecError, LinkError, PlatformError

ADVICE = """
Tickwheel is compiled where it is installed, and that failed: see above what the compiler said.
It needs a C compiler and the headers of Python. On Debian and Ubuntu:

    sudo apt-get install python3-venv python3-dev gcc libc6-dev
"""


class Build(build_ext):
    """Says what is needed, where pip shows it last."""

    def build_extensions(self) -> None:
        try:
            super().build_extensions()
        except (CCompilerError, CompileError, ExecError, LinkError, PlatformError) as error:
            raise SystemExit(f"{error}\n{ADVICE}") from None


modules = ["native/build.py:ffi"]
gateway = Path("gateway/native")
if gateway.exists():
    modules.append(f"{gateway}/wire/build.py:ffi")
    if run_path(f"{gateway}/build.py")["is_wanted"]():
        modules.append(f"{gateway}/build.py:ffi")
if os.environ.get("TICKWHEEL_COMPILED") == "keep":
    modules = []  # a second interpreter (.ci/pythons) takes what the first one has compiled in the tree

setup(
    cffi_modules=modules,
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
