"""The query engines that create and read tables in tests, each with its executor of table changes."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.hive_ddl.executors.base import Executor
from headrace.hive_ddl.executors.hiveserver import NOSASL, HiveServerAddress, HiveServerExecutor
from headrace.hive_ddl.executors.spark import SparkExecutor
from headrace.settings import Address
from support.free_ports import free_port
from support.hive.hive_server import HiveServer
from support.hive.hive_values import NestedBytes
from support.hive.spark_sessions import spark_session

SPARK = "Spark SQL"
THRIFT_SERVER = "Spark Thrift Server"
HIVE = "HiveServer2"
PORT_KEY = "hadoop.hive.server2.thrift.port"
HOST_KEY = "hadoop.hive.server2.thrift.bind.host"


class EngineRefused(Exception):
    """A query failed; the message is one line."""


@dataclass
class Engine:
    """A query engine. `query` runs a query and returns the rows with values as the engine's client library returns
    them."""

    name: str
    executor: Executor

    def query(self, query: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def nested(self, column: str) -> str:
        """Returns an SQL expression that converts an array, map or struct column to a text that can be parsed."""
        return column

    @property
    def nested_bytes(self) -> NestedBytes | None:
        return str.encode

    @property
    def julian_types(self) -> Collection[str]:
        """The logical types whose days before 1582-10-15 it shows in the Julian calendar."""
        return () if self.name == HIVE else ("date", "timestamp-millis")


@dataclass
class SparkEngine(Engine):
    session: Any

    def query(self, query: str) -> list[tuple[Any, ...]]:
        try:
            return [tuple(row) for row in self.session.sql(query).collect()]
        except Exception as error:
            raise EngineRefused(one_line(error)) from error


@dataclass
class ServerEngine(Engine):
    """An engine that is queried over the protocol of HiveServer2: HiveServer2 itself, or Spark's Thrift server."""

    address: HiveServerAddress

    def nested(self, column: str) -> str:
        # For this protocol, Spark writes nested values without escapes, which is not JSON.
        return f"to_json({column}, map('ignoreNullFields', 'false'))" if self.name == THRIFT_SERVER else column

    @property
    def nested_bytes(self) -> NestedBytes | None:
        return base64.b64decode if self.name == THRIFT_SERVER else None

    def query(self, query: str) -> list[tuple[Any, ...]]:
        assert isinstance(self.executor, HiveServerExecutor)
        try:
            return [tuple(row) for row in self.executor._query(query)]
        except Exception as error:
            raise EngineRefused(one_line(error)) from error


def second_executor(engine: Engine) -> Executor:
    """Returns another executor on the metastore of an engine, to simulate changes by another process."""
    if isinstance(engine, SparkEngine):
        return SparkExecutor(engine.session)
    assert isinstance(engine, ServerEngine)
    return HiveServerExecutor(engine.address)


@contextmanager
def spark_engines(directory: Path) -> Iterator[tuple[SparkEngine, ServerEngine]]:
    """Starts a Spark session and Spark's own Thrift Server with one metastore in one JVM."""
    listen = Address("127.0.0.1", free_port())
    extra = {HOST_KEY: listen.host, PORT_KEY: str(listen.port)}
    with spark_session(directory / "data with blanks", directory / "warehouse", extra=extra) as session:
        thrift_server = session._jvm.org.apache.spark.sql.hive.thriftserver.HiveThriftServer2
        thrift_server.startWithContext(session._jsparkSession.sqlContext())
        address = HiveServerAddress(listen.host, listen.port)
        server = ServerEngine(THRIFT_SERVER, HiveServerExecutor(address), address)
        yield SparkEngine(SPARK, SparkExecutor(session), session), server


@contextmanager
def hive_engine(directory: Path, **properties: str) -> Iterator[Engine]:
    server = HiveServer(directory, properties)
    try:
        address = HiveServerAddress("127.0.0.1", server.port, NOSASL)
        engine = ServerEngine(HIVE, HiveServerExecutor(address), address)
        yield engine
        engine.executor.close()
    finally:
        server.stop()


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def error_class(message: str) -> str:
    """Returns the innermost Java exception named in an error message: its class and the beginning of its text."""
    found: Sequence[str] = re.findall(r"\w+(?:Exception|Error): [^:]{0,80}", message)
    return found[-1] if found else message[:80]
