"""The archive of classes from which a JVM with Spark starts in half the time (Java's class data sharing).

It belongs to one Java and one set of Spark's jars, and stands with the Python packages that these are of. A JVM checks
at each start whether it fits, flags and class path included, and starts without it where it does not, or where there
is none: it changes how fast classes come and nothing else. `pipeline.class_archive` makes it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pyspark

ARCHIVE_FOLDER = Path("var") / "headrace"  # below the environment's own folder, which its end takes away
PREFIX, SUFFIX = "classes-", ".jsa"


def archive_path() -> Path:
    """Where the archive for the Java of `JAVA_HOME` and for Spark's jars is, or would be."""
    jars = Path(pyspark.__file__).parent / "jars"
    facts = [str(jars)]
    # Java itself compares sizes and times of the jars.
    facts += sorted(f"{one.name} {one.stat().st_size} {one.stat().st_mtime_ns}" for one in os.scandir(jars))
    java = Path(os.environ.get("JAVA_HOME", "")) / "release"
    facts.append(java.read_text(encoding="utf-8") if java.is_file() else "")
    key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    return Path(sys.prefix) / ARCHIVE_FOLDER / f"{PREFIX}{key}{SUFFIX}"


def archive_options() -> tuple[str, ...]:
    """Java's options for a JVM that is to start from the archive; none where it is not there."""
    try:
        path = archive_path()
    except OSError:  # Spark elsewhere: its jars are no folder of the Python package
        return ()
    return (f'"-XX:SharedArchiveFile={path}"',) if path.is_file() else ()
