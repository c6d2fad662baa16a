"""The class archive that halves the start time of a JVM with Spark (Java's class data sharing).

An archive belongs to one Java installation and one set of Spark jars, and is stored with the Python environment that
contains them. At each start the JVM checks whether the archive matches, including flags and class path. If it does not
match or does not exist, the JVM starts without it; the archive only changes how fast classes are loaded.
`pipeline.class_archive` creates it.

A damaged archive crashes the JVM at every start. The JVM therefore verifies checksums, which costs 0.1 s of the second
saved, and the archive's name contains its length, because a truncated archive crashes the JVM before it compares
checksums.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pyspark

ARCHIVE_DIRECTORY = Path("var") / "headrace"  # inside the environment, so that it is deleted with it
PREFIX, SUFFIX = "classes-", ".jsa"
CHECKED = ("-XX:+VerifySharedSpaces", "-Xlog:disable", "-Xlog:all=warning:stderr")
"""Java options that verify the archive's checksums and print Java's warnings to standard error. By default Java prints
them, such as one about an archive that does not match, to standard output, which is for reports."""


def archive_key() -> Path:
    """Returns the path of the JVM's class archive for the Java of `JAVA_HOME` and Spark's jars, without the end of the
    file's name, which is its size in bytes and `SUFFIX`.

    Raises:
        OSError: Spark's jars are not in the Python package, or cannot be read.
    """
    jars = Path(pyspark.__file__).parent / "jars"
    facts = [str(jars)]
    # Java itself compares sizes and times of the jars.
    facts += sorted(f"{one.name} {one.stat().st_size} {one.stat().st_mtime_ns}" for one in os.scandir(jars))
    java = Path(os.environ.get("JAVA_HOME", "")) / "release"
    facts.append(java.read_text(encoding="utf-8") if java.is_file() else "")
    key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    return Path(sys.prefix) / ARCHIVE_DIRECTORY / f"{PREFIX}{key}"


def archive_name(key: Path, size: int) -> Path:
    """Returns the path of a JVM's class archive: `key`, then the size, then `SUFFIX`.

    Args:
        key: the path without size and suffix, see `archive_key`.
        size: of the archive, in bytes.
    """
    return key.with_name(f"{key.name}-{size}{SUFFIX}")


def find_archive(key: Path) -> Path | None:
    """Returns the path of the JVM's class archive; None if it is missing or truncated (its name contains its size in
    bytes).

    Args:
        key: the path without size and suffix, see `archive_key`.
    """
    found = key.parent.glob(f"{key.name}-*{SUFFIX}")
    return next((one for one in found if one == archive_name(key, one.stat().st_size)), None)


def archive_options() -> tuple[str, ...]:
    """Returns the Java options with which a JVM loads the class archive; empty if there is no archive, or if Spark's
    jars cannot be read."""
    try:
        path = find_archive(archive_key())
    except OSError:
        return ()
    return () if path is None else (f'"-XX:SharedArchiveFile={path}"', *CHECKED)
