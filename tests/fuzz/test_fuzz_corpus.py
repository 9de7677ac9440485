"""The kept inputs of the fuzz targets, with AddressSanitizer and UBSan: what once failed stays mended."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fuzz.run import ENVIRONMENT, HERE, SANITIZERS, TARGETS, build, targets, unpack


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every target with a main that reads files, so that any compiler will do."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("there is no C compiler")
    output = tmp_path_factory.mktemp("fuzz")
    build([compiler, *SANITIZERS], output, more=[HERE / "replay.c"], link=[])
    return output


@pytest.mark.parametrize("target", TARGETS)
def test_the_kept_corpus(programs: Path, target: str, tmp_path: Path) -> None:
    if target not in targets():
        assert os.environ.get("CI_NGHTTP2") != "required", "nghttp2 is required, and is not here"
        pytest.skip("nghttp2 is not here: apt-get install libnghttp2-dev")
    inputs = unpack(target, tmp_path)
    assert len(inputs) >= 10
    done = subprocess.run(
        [str(programs / target), *map(str, inputs)],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(inputs)} inputs\n"


def test_an_invariant_that_does_not_hold_is_noticed(programs: Path, tmp_path: Path) -> None:
    """With a defect put in (a message is counted twice): otherwise all of the above would prove little."""
    ingest = (HERE.parent / "native" / "ingest.c").read_text()
    sound = "tw_apply_message(store, &message, position, item->key_hash);"
    assert ingest.count(sound) == 1
    broken = tmp_path / "ingest.c"
    broken.write_text(ingest.replace(sound, f"{sound} store->topics[message.head.aux].scheduled++;"))
    objects = [path for path in (programs / "objects").iterdir() if path.stem != "ingest"]
    program = tmp_path / "broken"
    subprocess.run(
        ["cc", *SANITIZERS, f"-I{HERE.parent / 'native'}", "-D_GNU_SOURCE", str(broken),
         str(HERE / "target_ingest.c"), *map(str, objects), "-o", str(program)],
        check=True,
    )  # fmt: skip
    inputs = unpack("ingest", tmp_path / "inputs")
    done = subprocess.run(
        [str(program), *map(str, inputs)],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        check=False,
    )
    assert done.returncode != 0
    assert "does not hold" in done.stderr
