"""What pyproject.toml cannot say: the cffi extensions, and that their wheel fits every CPython from 3.11 on."""

import os
from pathlib import Path
from runpy import run_path

from setuptools import setup

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
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
