"""What pyproject.toml cannot say: the cffi extensions, and that their wheel fits every CPython from 3.11 on."""

from runpy import run_path

from setuptools import setup

modules = ["native/build.py:ffi", "gateway/native/wire/build.py:ffi"]
if run_path("gateway/native/build.py")["is_wanted"]():
    modules.append("gateway/native/build.py:ffi")

setup(
    cffi_modules=modules,
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
