"""The shared world of the modules in the group `tables`; each test has its own topics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.hive.process_session import ProcessSession
from support.hive.spark_sessions import spark_session
from support.loader.load_world import LoadWorld
from support.memory_directory import memory_directory


@pytest.fixture(scope="session")
def tables_world() -> Iterator[LoadWorld]:
    """Registry, broker and metastore, and one process for all loads and rewrites, which reuses its Spark."""
    with memory_directory("tables") as directory:
        world = LoadWorld(directory, keeps_spark=True)
        yield world
        world.close()


@pytest.fixture(scope="module")
def analyst(tables_world: LoadWorld, process_session: ProcessSession) -> Any:
    """A Spark session in another process than the loads, on the same metastore."""
    world = tables_world
    return process_session.get(
        "analyst of the tables",
        lambda: spark_session(world.data_dir / "analyst", world.warehouse, metastore=world.addresses["metastore"]),
    )
