"""The archive of classes from which a JVM with Spark starts in half the time (Java's class data sharing).

It belongs to one Java and one set of Spark's jars, and stands with the Python packages that these are of. A JVM checks
at each start whether it fits, flags and class path included, and starts without it where it does not, or where there
is none: it changes how fast classes come and nothing else. `pipeline.class_archive` makes it.

A JVM crashes on a damaged one, at every start. So it is told to compare checksums, 0.1 s of the second that is won, and
the archive's name has its length, since one that was cut off ends a JVM before it comes to compare anything.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pyspark

ARCHIVE_DIRECTORY = Path("var") / "headrace"  # below the environment's own directory, which its end takes away
PREFIX, SUFFIX = "classes-", ".jsa"
CHECKED = ("-XX:+VerifySharedSpaces", "-Xlog:disable", "-Xlog:all=warning:stderr")
"""Java's warnings, of an archive that does not fit too, would go to standard output, which is for reports."""


def archive_key() -> Path:
    """Where the archive for the Java of `JAVA_HOME` and for Spark's jars is, but for its length and `SUFFIX`.

    Raises:
        OSError: Spark is elsewhere: its jars are no directory of the Python package.
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
    """An archive of so many bytes."""
    return key.with_name(f"{key.name}-{size}{SUFFIX}")


def find_archive(key: Path) -> Path | None:
    """The archive that is there as it was made."""
    found = key.parent.glob(f"{key.name}-*{SUFFIX}")
    return next((one for one in found if one == archive_name(key, one.stat().st_size)), None)


def archive_options() -> tuple[str, ...]:
    """Java's options for a JVM that is to start from the archive; none where it is not there."""
    try:
        path = find_archive(archive_key())
    except OSError:
        return ()
    return () if path is None else (f'"-XX:SharedArchiveFile={path}"', *CHECKED)
