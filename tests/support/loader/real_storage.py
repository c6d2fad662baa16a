"""Storages on real file systems, through a JVM of Spark in the test process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headrace.hive_ddl.executors.session import close_shared_jvm, session_properties, shared_jvm
from headrace.loader.storage.hadoop import hadoop_storage
from headrace.loader.storage.hadoop.jvm import FILE_SYSTEMS
from headrace.loader.storage.protocols import Storage
from headrace.pipeline.java import ensure_java

NUMBERS = itertools.count()


@contextmanager
def spark_jvm(data_dir: Path, spark: Mapping[str, str]) -> Iterator[None]:
    """Runs Spark's JVM with these properties while the context is open. `real_storage` accesses file systems through
    it.

    Args:
        spark: keys and values of the settings section `[spark]`.
    """
    ensure_java(data_dir)
    properties = session_properties(
        app_name="test",
        master="local[1]",
        metastore_uri=None,
        data_dir=data_dir,
        warehouse_uri=f"file://{data_dir}",
        extra=spark,
        short_lived=True,
    )
    shared_jvm(data_dir, properties)
    try:
        yield
    finally:
        close_shared_jvm()


def real_storage(base: str) -> Storage:
    """Returns the storage of a new warehouse, in a new directory below `base`."""
    uri = f"{base}/w{next(NUMBERS)}"
    file_system = FILE_SYSTEMS[uri.partition(":")[0]](lambda: shared_jvm(Path(), {}), uri)
    return hadoop_storage(file_system, uri)
