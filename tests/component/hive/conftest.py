"""One engine of each kind: a Spark session, a Spark Thrift Server on the same metastore, and HiveServer2."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.hive.hive_engines import HIVE, SPARK, THRIFT_SERVER, Engine, hive_engine


@pytest.fixture(scope="module")
def engines_of_spark(shared_engines: tuple[Engine, Engine]) -> dict[str, Engine]:
    return {engine.name: engine for engine in shared_engines}


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
    """Each engine; tests with HiveServer2 run in `make test-hive`."""
    if request.param == HIVE:
        server: Engine = request.getfixturevalue("hive_server")
        return server
    engines: dict[str, Engine] = request.getfixturevalue("engines_of_spark")
    return engines[request.param]
