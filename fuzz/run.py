"""Builds the fuzz targets with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer, and runs them.

``python -m fuzz.run --seconds 60`` shares that time among the targets. They begin with the kept corpus
(``fuzz/corpus/TARGET.zip``); what they find new stays in ``build/fuzz``. ``--keep`` merges it into the corpus, as few
inputs as reach everything. An input that fails is written to ``build/fuzz/failures``; add it to the corpus when its
cause is mended. README.md says more.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
HERE: Final = ROOT / "fuzz"
BUILD: Final = ROOT / "build" / "fuzz"
GATEWAY: Final = ROOT / "gateway" / "native"
HTTP2: Final = "http2"
"""The one target that needs a library: nghttp2."""
TARGETS: Final = sorted(path.stem.removeprefix("target_") for path in HERE.glob("target_*.c"))
SANITIZERS: Final = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FLAGS: Final = ["-std=c11", "-D_GNU_SOURCE", "-DTICKWHEEL_ASSERT", "-O1", "-g", "-fno-omit-frame-pointer"]
# Of the native sources, those that only map files into memory are not for fuzzing.
LEFT_OUT: Final = {"memory.c"}
ENVIRONMENT: Final = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}


def native_sources() -> list[Path]:
    """The C code that is fuzzed."""
    found = [*(ROOT / "native").glob("*.c"), *(ROOT / "gateway" / "native" / "wire").glob("*.c")]
    return sorted(path for path in found if path.name not in LEFT_OUT)


def sources() -> list[Path]:
    """What is linked to every target."""
    return [HERE / "harness.c", HERE / "invariants.c", *native_sources()]


def why_not() -> str:
    """Why there is no fuzzing on this machine; empty when there is."""
    if shutil.which("clang") is None:
        return "clang is not installed"
    name = f"libclang_rt.fuzzer-{os.uname().machine}.a"
    found = subprocess.run(["clang", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return "" if Path(found.stdout.strip()).is_absolute() else f"clang has no {name}"


def targets() -> list[str]:
    """Those that can be built here."""
    has_nghttp2 = runpy.run_path(str(GATEWAY / "build.py"))["is_there"]()
    return [target for target in TARGETS if target != HTTP2 or has_nghttp2]


def build(compiler: list[str], output: Path, *, more: list[Path], link: list[str]) -> None:
    """Compiles what all targets share once, then each target."""
    objects_folder = output / "objects"
    objects_folder.mkdir(parents=True, exist_ok=True)
    objects = []
    for source in [*sources(), *more]:
        objects.append(objects_folder / f"{source.stem}.o")
        subprocess.run([*compiler, *FLAGS, "-c", str(source), "-o", str(objects[-1])], check=True)
    for target in targets():
        program = [str(HERE / f"target_{target}.c"), *map(str, objects)]
        if target == HTTP2:
            program += [*map(str, sorted(GATEWAY.glob("*.c"))), "-lnghttp2"]
        subprocess.run([*compiler, *link, *FLAGS, *program, "-o", str(output / target)], check=True)


def unpack(target: str, folder: Path) -> list[Path]:
    """The kept corpus of a target, as files."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = HERE / "corpus" / f"{target}.zip"
    if archive.exists():
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
    return sorted(folder.iterdir())


def pack(target: str, folder: Path) -> int:
    """Makes these files the corpus; returns its size. The same files give the same archive."""
    archive = HERE / "corpus" / f"{target}.zip"
    archive.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(folder.iterdir()):
            packed.writestr(zipfile.ZipInfo(path.name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return archive.stat().st_size


def fuzz(target: str, seconds: int) -> bool:
    """Runs one target; whether it found nothing wrong."""
    found, failures = BUILD / "found" / target, BUILD / "failures"
    kept = BUILD / "corpus" / target
    unpack(target, kept)
    for folder in (found, failures):
        folder.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"]
    command = [str(BUILD / target), *options, f"-artifact_prefix={failures}/{target}-", str(found), str(kept)]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env={**os.environ, **ENVIRONMENT}
    )
    runs = re.search(r"number_of_executed_units: +(\d+)", done.stderr)
    coverage = re.findall(r"cov: (\d+)", done.stderr)
    print(
        f"{target:8} {int(runs[1]) if runs else 0:>12,} inputs in {seconds} s,"
        f" {coverage[-1] if coverage else '?'} edges: {'failed' if done.returncode else 'nothing found'}",
        flush=True,
    )
    if done.returncode:
        print(done.stderr[-6_000:], file=sys.stderr)
    return done.returncode == 0


def keep(target: str) -> None:
    """Merges what was found into the corpus."""
    merged = BUILD / "merged" / target
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir(parents=True)
    folders = [merged, BUILD / "corpus" / target, BUILD / "found" / target]
    # By edges alone: how often each was passed would keep five times as many.
    command = [str(BUILD / target), "-merge=1", "-use_counters=0", *map(str, folders)]
    subprocess.run(command, capture_output=True, check=True, env={**os.environ, **ENVIRONMENT})
    print(f"{target:8} {len(list(merged.iterdir())):>6} inputs kept, {pack(target, merged):,} bytes")


def main() -> int:
    """Returns an exit code: 1 when something was found."""
    parser = argparse.ArgumentParser(description="Fuzz the C code.")
    parser.add_argument("targets", nargs="*", default=targets(), help="default: all of them")
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument("--keep", action="store_true", help="merge what was found into the corpus")
    arguments = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"SKIPPED fuzzing: {reason}", file=sys.stderr)
        return 0
    warnings = ["-Wall", "-Wextra", "-Wno-unused-parameter"]
    compiler = ["clang", *SANITIZERS, "-fsanitize=fuzzer-no-link", *warnings]
    build(compiler, BUILD, more=[], link=["-fsanitize=fuzzer"])
    share = max(1, arguments.seconds // len(arguments.targets))
    results = [fuzz(target, share) for target in arguments.targets]
    if arguments.keep:
        for target in arguments.targets:
            keep(target)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
