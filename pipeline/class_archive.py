"""Creates the class archive: a file with Spark's loaded classes that halves the start time of a JVM (Java's class data
sharing, see `hive_ddl.executors.class_archive`). It takes half a minute, once for each installation of Java and Spark.

To create it, a JVM runs SQL queries on a temporary metastore, loads the classes of the metastore server, and writes the
classes that it has loaded to the archive when it exits. `make setup` runs `python -m headrace.pipeline.class_archive`,
and `headrace up` runs it in the background. If Java writes no archive, later runs do not retry it. Without the archive
everything works, but starts more slowly.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.hive_ddl.errors import HiveDdlError
from headrace.hive_ddl.executors.class_archive import PREFIX, archive_key, archive_name, find_archive
from headrace.pipeline.java import JavaNotFoundError, ensure_java
from headrace.settings.log_format import configure_logging

logger = logging.getLogger(__name__)

DISK_BYTES_MIN = 1024**3  # required free space; the archive takes 200 MB
WRITE_TIMEOUT_S = 300.0  # for writing the archive at the JVM's exit, which takes 10 s
NICENESS = 19


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the temporary directory is deleted
    configure_logging()
    os.nice(NICENESS)
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-classes-", ignore_cleanup_errors=True) as scratch:
            ensure_java(Path(scratch))
            create_archive(Path(scratch))
    except SystemExit:
        # A JVM that is starting does not notice the end of this process, and its process id is not known yet.
        if os.getpgrp() == os.getpid():  # as of a part of `headrace up`
            os.killpg(0, signal.SIGKILL)
        raise
    except (HiveDdlError, JavaNotFoundError, OSError) as error:
        print(f"headrace: the class archive was not created: {error}", file=sys.stderr)
        return 2
    return 0


def is_needed() -> bool:
    """Returns whether to create the class archive, Java's file of loaded classes with which JVMs start faster: it is
    missing or truncated, Java has not failed to write it in an earlier run, and its directory is writable with enough
    free space."""
    try:
        key = archive_key()
        directory = next(one for one in key.parents if one.exists())
        is_new = find_archive(key) is None and not _failure_marker(key).exists()
        return is_new and os.access(directory, os.W_OK) and shutil.disk_usage(directory).free >= DISK_BYTES_MIN
    except OSError:
        return False


def create_archive(scratch: Path) -> None:
    """Creates the class archive, Java's file of loaded classes with which JVMs start faster, and deletes all other
    archives in its directory. Does nothing if the archive is not needed (`is_needed`) or another process is creating
    it.

    Args:
        scratch: directory for temporary files.

    Raises:
        HiveDdlError, OSError: the archive cannot be created.
    """
    key = archive_key()
    if not is_needed():
        return
    key.parent.mkdir(parents=True, exist_ok=True)
    with _lock(key.parent / "classes.lock") as is_locked:
        if not is_locked:
            return
        new_archive = key.with_name(f"{key.name}.new")
        new_archive.unlink(missing_ok=True)
        _run_jvm(scratch, new_archive)
        if not new_archive.is_file():
            _failure_marker(key).touch()
            raise OSError(f"Java wrote no class archive; to retry, delete {_failure_marker(key)}")
        with new_archive.open("rb") as file:
            os.fsync(file.fileno())
        for other in key.parent.glob(f"{PREFIX}*"):
            if other != new_archive:
                other.unlink()
        path = archive_name(key, new_archive.stat().st_size)
        new_archive.replace(path)
        logger.info("class_archive_made path=%s", path)


def _run_jvm(scratch: Path, archive: Path) -> None:
    from headrace.hive_ddl.executors.session import open_session
    from headrace.pipeline.sql import run_query

    session = open_session(
        app_name="headrace classes",
        master="local[2]",
        metastore_uri=None,
        data_dir=scratch,
        warehouse_uri=f"file://{scratch}/warehouse",
        extra={"driver.extraJavaOptions": f'"-XX:ArchiveClassesAtExit={archive}"', "driver.memory": "1g"},
    )
    process: subprocess.Popen[bytes] = session.sparkContext._gateway.proc
    try:
        run_query(session.newSession(), "SELECT 1 AS one", "default", with_values=True)
        run_query(session.newSession(), "SHOW DATABASES", "default")
        _load_metastore_classes(session)
        session.stop()
        assert process.stdin is not None
        process.stdin.close()  # the JVM exits and writes the archive
        process.wait(WRITE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        logger.warning("class_archive_not_made reason=timeout; JVMs start more slowly without it")
    finally:
        process.kill()
        process.wait()


def _load_metastore_classes(session: Any) -> None:
    thrift, hive = session._jvm.org.apache.thrift, session._jvm.org.apache.hadoop.hive.metastore
    for name in (thrift.server.TThreadPoolServer, thrift.transport.TServerSocket, hive.RetryingHMSHandler):
        session._jvm.java.lang.Class.forName(name._fqn)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Tries to lock a file, without waiting, while the context is open. Yields whether this process got the lock."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _failure_marker(key: Path) -> Path:
    return key.with_name(f"{key.name}.failed")


if __name__ == "__main__":
    sys.exit(main())
