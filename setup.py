"""What pyproject.toml cannot say: the cffi extension, and that its wheel fits every CPython from 3.11 on."""

from setuptools import setup

setup(
    cffi_modules=["native/build.py:ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
