"""What Python may call is what the headers say: the build reads them, and does not guess."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tickwheel_native

ROOT = Path(__file__).resolve().parents[3]


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def build() -> ModuleType:
    load("native/build.py")  # it says where the rest lies
    return importlib.import_module("extension")


@pytest.fixture(scope="module", params=["native/build.py", "gateway/native/build.py"])
def made(request: pytest.FixtureRequest) -> tuple[str, Any]:
    """What makes an extension, and the extension."""
    return request.param, load(request.param).EXTENSION


def declared(build: ModuleType, extension: Any) -> list[str]:
    return [text for path in extension.headers() for text in build.declarations(path.read_text())]


def compiled(extension: Any) -> Any:
    if extension.name == "tickwheel_native._native":
        return tickwheel_native
    return pytest.importorskip(extension.name, reason="nghttp2 was not compiled in")


def test_the_stub_says_what_the_headers_say(build: ModuleType, made: tuple[str, Any]) -> None:
    maker, extension = made
    assert extension.stub.read_text() == build.stub(declared(build, extension), maker), f"run python {maker}"


def test_the_compiled_extension_has_each_function_and_constant_of_the_stub(made: tuple[str, Any]) -> None:
    _, extension = made
    named = re.findall(r"^    (?:def )?(\w+)[:(]", extension.stub.read_text(), re.MULTILINE)
    assert len(named) > 50
    assert sorted(named) == sorted(name for name in dir(compiled(extension).lib) if not name.startswith("_"))


def test_each_structure_is_seen_whole(build: ModuleType, made: tuple[str, Any]) -> None:
    _, extension = made
    names = re.findall(r"} (tw_\w+);", "\n".join(declared(build, extension)))
    assert {"tw_row", "tw_store", "tw_wheel", "tw_bulk", "tw_head"} <= set(names) or "tw_http2_event" in names
    assert all(compiled(extension).ffi.sizeof(name) > 0 for name in names)


def test_what_is_marked_and_what_is_inline_stays_in_c(build: ModuleType) -> None:
    header = """
    #ifndef TICKWHEEL_X_H
    #define TICKWHEEL_X_H
    #include <stdint.h>
    #define TW_LIMIT (UINT64_C(1) << 46) /* a constant */
    enum { TW_A = 1, /* ; } */ TW_B = -2 };
    typedef struct { int64_t x; const uint8_t *y, *z[4]; } tw_pair;
    TW_INTERNAL int tw_hidden(const tw_pair *pair);
    static inline int tw_inline(int a) { if (a) { return 1; } return 2; }
    _Static_assert(sizeof(tw_pair) == 48, "a pair");
    const tw_pair *tw_seen(const tw_pair *pair,
                           uint64_t n);
    #endif
    """.replace("\n    ", "\n")
    assert [" ".join(text.split()) for text in build.declarations(header)] == [
        "#define TW_LIMIT ...",
        "enum { TW_A = 1, TW_B = -2 };",
        "typedef struct { int64_t x; const uint8_t *y, *z[4]; } tw_pair;",
        "const tw_pair *tw_seen(const tw_pair *pair, uint64_t n);",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "#define TW_SQUARE(x) ((x) * (x))",
        '#define TW_NAME "text"',
        "#ifdef __linux__",
        "#pragma once",
        "extern int tw_global;",
        "int tw_call(int (*back)(int));",
        "typedef int64_t tw_number;",
        "int other(void);",
        "int tw_unfinished(int a",
    ],
)
def test_what_is_not_understood_ends_the_build(build: ModuleType, line: str) -> None:
    with pytest.raises(build.NotUnderstood):
        list(build.declarations(f"int tw_before(void);\n{line}\n"))
