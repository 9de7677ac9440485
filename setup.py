"""What pyproject.toml cannot say: the cffi extensions, and that their wheel fits every CPython from 3.11 on."""

from pathlib import Path
from runpy import run_path

from setuptools import setup

modules = ["native/build.py:ffi"]
# The container of the broker is built without the gateway.
gateway = Path("gateway/native/build.py")
if gateway.exists() and run_path(str(gateway))["is_wanted"]():
    modules.append(f"{gateway}:ffi")

setup(
    cffi_modules=modules,
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
