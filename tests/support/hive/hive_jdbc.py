"""Queries HiveServer2 through the JDBC driver of beeline, in a separate JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from pyspark.find_spark_home import _find_spark_home

from support.servers.maven_jars import classpath_of


class HiveJdbc:
    def __init__(self, url: str) -> None:
        (py4j,) = (Path(_find_spark_home()) / "jars").glob("py4j-*.jar")
        port, secret = launch_gateway(
            jarpath=str(py4j),
            classpath=classpath_of("hive-jdbc"),
            javaopts=["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.timezone=UTC"],
            die_on_exit=True,
            enable_auth=True,
        )
        parameters = GatewayParameters(port=port, auth_token=secret, auto_convert=True)
        self._gateway = JavaGateway(gateway_parameters=parameters)
        jvm: Any = self._gateway.jvm
        self._connection = jvm.java.sql.DriverManager.getConnection(url)

    def query(self, query: str) -> list[tuple[Any, ...]]:
        statement = self._connection.createStatement()
        try:
            found = statement.executeQuery(query)
            columns = range(1, found.getMetaData().getColumnCount() + 1)
            rows = []
            while found.next():
                rows.append(tuple(found.getObject(column) for column in columns))
            return rows
        finally:
            statement.close()

    def close(self) -> None:
        self._connection.close()
        self._gateway.shutdown()
