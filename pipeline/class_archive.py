"""Makes the archive of Spark's classes, see `hive_ddl.executors.class_archive`: in half a minute, once.

A JVM does on a metastore of its own what the metastore, SQL and loads do as they start, and writes down at its end
which classes it had. Run as `python -m headrace.pipeline.class_archive`; `make setup` does, and `headrace up` in the
background. Where it cannot be made, it is not tried again, and everything works as without it.
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

DISK_BYTES_MIN = 1024**3  # free beforehand; the archive takes 200 MB
WRITE_TIMEOUT_S = 300.0  # of the archive, at the JVM's end: 10 s of work
NICENESS = 19


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of what takes the JVM and the scratch away
    configure_logging()
    os.nice(NICENESS)
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-classes-") as scratch:
            ensure_java(Path(scratch))
            make_archive(Path(scratch))
    except (HiveDdlError, JavaNotFoundError, OSError) as error:
        print(f"headrace: no archive of classes was made: {error}", file=sys.stderr)
        return 2
    return 0


def is_wanted() -> bool:
    """Whether there is no archive and it can be made; what failed once is not tried again."""
    try:
        key = archive_key()
        directory = next(one for one in key.parents if one.exists())
        is_new = find_archive(key) is None and not _failed(key).exists()
        return is_new and os.access(directory, os.W_OK) and shutil.disk_usage(directory).free >= DISK_BYTES_MIN
    except OSError:
        return False


def make_archive(scratch: Path) -> None:
    """Makes the archive where it is wanted and nobody else is making it, in place of those that fit no longer.

    Raises:
        HiveDdlError, OSError: it cannot be made.
    """
    key = archive_key()
    if not is_wanted():
        return
    key.parent.mkdir(parents=True, exist_ok=True)
    with _alone(key.parent / "classes.lock") as is_alone:
        if not is_alone:
            return
        made = key.with_name(f"{key.name}.new")
        made.unlink(missing_ok=True)
        _run_jvm(scratch, made)
        if not made.is_file():
            _failed(key).touch()
            raise OSError(f"Java wrote none; it is not tried again while {_failed(key)} is there")
        with made.open("rb") as file:
            os.fsync(file.fileno())
        for other in key.parent.glob(f"{PREFIX}*"):
            if other != made:
                other.unlink()
        path = archive_name(key, made.stat().st_size)
        made.replace(path)
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
        process.stdin.close()  # the JVM ends, and writes the archive
        process.wait(WRITE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        logger.warning("class_archive_not_made reason=timeout")
    finally:
        process.kill()
        process.wait()


def _load_metastore_classes(session: Any) -> None:
    thrift, hive = session._jvm.org.apache.thrift, session._jvm.org.apache.hadoop.hive.metastore
    for name in (thrift.server.TThreadPoolServer, thrift.transport.TServerSocket, hive.RetryingHMSHandler):
        session._jvm.java.lang.Class.forName(name._fqn)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Whether no other process is in here."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _failed(key: Path) -> Path:
    return key.with_name(f"{key.name}.failed")


if __name__ == "__main__":
    sys.exit(main())
