"""One of each engine for a module: a Spark session, a Spark Thrift Server on the same metastore, HiveServer2."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.hive.hive_engines import HIVE, SPARK, THRIFT_SERVER, Engine, hive_engine, spark_engines


@pytest.fixture(scope="module")  # a process has one session at a time, and other modules have theirs
def engines_of_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Engine]]:
    with spark_engines(tmp_path_factory.mktemp("spark")) as engines:
        yield {engine.name: engine for engine in engines}


@pytest.fixture(scope="session")
def hive_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with hive_engine(tmp_path_factory.mktemp("hive") / "server") as engine:
        yield engine


@pytest.fixture(
    params=[
        pytest.param(SPARK, marks=pytest.mark.spark),
        pytest.param(THRIFT_SERVER, marks=pytest.mark.spark),
        pytest.param(HIVE, marks=pytest.mark.hive),
    ]
)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each of them; what is HiveServer2's runs in `make test-hive`."""
    if request.param == HIVE:
        server: Engine = request.getfixturevalue("hive_server")
        return server
    engines: dict[str, Engine] = request.getfixturevalue("engines_of_spark")
    return engines[request.param]
