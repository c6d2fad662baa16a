"""Spark sessions of the test process, which has one at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest
from pyspark.sql import SparkSession

from headrace.hive_ddl.executors.session import close_session, open_session
from headrace.hive_ddl.table import local_location
from headrace.pipeline.java import ensure_java


@contextmanager
def spark_session(
    data_dir: Path,
    warehouse: Path,
    *,
    metastore: str | None = None,
    master: str = "local[1]",
    extra: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[SparkSession]:
    """Opens a Spark session while the context is open.

    Args:
        metastore: URI of the metastore; without one, the session has a Derby metastore in `data_dir`.
    """
    environment = dict(os.environ)
    with pytest.MonkeyPatch.context() as patch:
        # The class archive, which halves the start time of a JVM, belongs to the Java in JAVA_HOME.
        patch.setenv("JAVA_HOME", str(ensure_java(data_dir, environment)))
        session = open_session(
            app_name="tests",
            master=master,
            metastore_uri=metastore,
            data_dir=data_dir,
            warehouse_uri=local_location(warehouse),
            extra={"sql.shuffle.partitions": "1", **extra},
            short_lived=True,
        )
    try:
        yield session
    finally:
        close_session(session)
