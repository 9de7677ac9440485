"""How an extension is made from a folder of C sources (cffi, API mode, stable ABI).

Its headers say what Python may call: each constant, structure and function, but those marked ``TW_INTERNAL``. What
cffi reads is made from them here, and so is the stub that type checkers read. A declaration that is not understood ends
the build. ``TICKWHEEL_SANITIZE=1`` builds with ASan and UBSan instead of ``-O2``. A warning of the compiler ends
the build with ``TICKWHEEL_WERROR=1`` alone: a newer compiler may warn of more. ``TICKWHEEL_ASSERT=1`` compiles
assertions in. ``make`` sets both.
"""

from __future__ import annotations

import keyword
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cffi import FFI

WARNINGS = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wno-unused-parameter"]
WARNING_ERRORS = ["-Werror"] if os.environ.get("TICKWHEEL_WERROR") == "1" else []
ASSERTIONS = ["-DTICKWHEEL_ASSERT"] if os.environ.get("TICKWHEEL_ASSERT") == "1" else []
OPTIMISED = ["-O2", "-g1", "-fno-strict-aliasing"]
SANITIZED = [
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
]

# A declaration that C sources share and Python does not see begins with this word.
INTERNAL = "TW_INTERNAL"
LINE = 110  # characters of a line of the stub
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_IGNORED = re.compile(r"#(ifndef|define) TICKWHEEL_\w+_H|#endif|#include .*|#define TW_INTERNAL .*")
_CONSTANT = re.compile(r"#define (TW_\w+) +[\w()+\-*<> ]*\d[\w()+\-*<> ]*")
_STRUCT = re.compile(r"typedef struct \{.*\} tw_\w+;", re.DOTALL)
_ENUM = re.compile(r"enum \{(.*)\};", re.DOTALL)
_FUNCTION = re.compile(r"([\w ]+?[ *]+)(tw_\w+)\(([^()]*)\);", re.DOTALL)


class NotUnderstood(Exception):
    """A header holds what is neither a constant, a structure, a function nor an include."""


def declarations(header: str) -> Iterator[str]:
    """What Python may see of a header, as cffi reads it: one declaration each, ``...`` for the values of constants."""
    code = []
    for line in _COMMENT.sub(" ", header).splitlines():
        if not line.startswith("#"):
            code.append(line)
        elif constant := _CONSTANT.fullmatch(line.strip()):
            yield f"#define {constant[1]} ..."
        elif not _IGNORED.fullmatch(line.strip()):
            raise NotUnderstood(line)
    for text in _split("\n".join(code)):
        if text.startswith(("static inline ", "_Static_assert(", INTERNAL)):
            continue
        if not (_STRUCT.fullmatch(text) or _ENUM.fullmatch(text) or _FUNCTION.fullmatch(text)):
            raise NotUnderstood(text)
        yield text


def _split(code: str) -> Iterator[str]:
    """The declarations of C code: each ends with a semicolon, or an inline function with its last brace, outside of all
    others."""
    start = depth = 0
    for at, char in enumerate(code):
        depth += (char == "{") - (char == "}")
        text = code[start : at + 1].strip()
        if depth == 0 and (char == ";" or (char == "}" and text.startswith("static inline "))):
            yield text
            start = at + 1
    if rest := code[start:].strip():
        raise NotUnderstood(rest)


def stub(found: list[str], maker: str) -> str:
    """The types of ``lib``: a pointer is Any, a double a float, others an int. ``maker``: which script makes it."""
    constants, functions = [], []
    for text in found:
        if text.startswith("#define"):
            constants.append(text.split()[1])
        elif enum := _ENUM.fullmatch(text):
            constants += [item.split("=")[0].strip() for item in enum[1].split(",") if item.strip()]
        elif function := _FUNCTION.fullmatch(text):
            functions.append(_method(*function.groups()))
    return "\n".join(
        [
            f"# Made by {maker} from the headers.",
            "from typing import Any",
            "",
            "class _Lib:",
            *(f"    {name}: int" for name in constants),
            *functions,
            "",
            "ffi: Any",
            "lib: _Lib",
            "",
        ]
    )


def _method(result: str, name: str, parameters: str) -> str:
    """As the formatter would have it."""
    named = ["self"]
    for parameter in parameters.split(",") if parameters.strip() != "void" else ():
        found = re.fullmatch(r"\s*([\w ]+?[ *]+)(\w+)\s*", parameter)
        if found is None:
            raise NotUnderstood(parameter)
        word = found[2] + "_" * keyword.iskeyword(found[2])
        named.append(f"{word}: {_type(found[1])}")
    named.append("/")
    listed, ending = ", ".join(named), f") -> {_type(result)}: ..."
    if len(f"    def {name}({listed}{ending}") <= LINE:
        return f"    def {name}({listed}{ending}"
    if len(f"        {listed}") <= LINE:
        return f"    def {name}(\n        {listed}\n    {ending}"
    return "\n".join([f"    def {name}(", *(f"        {parameter}," for parameter in named), f"    {ending}"])


def _type(kind: str) -> str:
    if "*" in kind:
        return "Any"
    return {"void": "None", "double": "float"}.get(kind.strip(), "int")


@dataclass(frozen=True)
class Extension:
    """One of them."""

    name: str
    """As Python imports it."""
    folder: Path
    """Of the sources; the headers in it that Python sees are `seen`."""
    seen: tuple[str, ...]
    stub: Path
    libraries: tuple[str, ...] = ()

    def headers(self) -> list[Path]:
        """What Python sees."""
        return [self.folder / name for name in self.seen]

    def make_ffi(self, base: Path) -> FFI:
        """The builder; ``base`` is the folder from which the compiler will be called."""
        sanitize = os.environ.get("TICKWHEEL_SANITIZE") == "1"
        builder = FFI()
        for path in self.headers():
            builder.cdef("\n".join(declarations(path.read_text())))
        builder.set_source(
            self.name,
            "\n".join(f'#include "{name}"' for name in self.seen),
            # setuptools wants paths relative to the project for sdist builds.
            sources=[str(path.relative_to(base)) for path in sorted(self.folder.glob("*.c"))],
            depends=[str(path.relative_to(base)) for path in sorted(self.folder.glob("*.h"))],
            include_dirs=[str(self.folder)],
            extra_compile_args=WARNINGS
            + WARNING_ERRORS
            + ASSERTIONS
            + (SANITIZED if sanitize else OPTIMISED),
            extra_link_args=["-fsanitize=address,undefined"] if sanitize else [],
            libraries=list(self.libraries),
            py_limited_api=True,
        )
        return builder

    def write_stub(self, maker: str) -> None:
        """Where the headers have changed, so that an unchanged file keeps its time."""
        found = [text for path in self.headers() for text in declarations(path.read_text())]
        text = stub(found, maker)
        if not self.stub.exists() or self.stub.read_text() != text:
            self.stub.write_text(text)
