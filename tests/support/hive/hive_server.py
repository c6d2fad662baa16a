"""A real HiveServer2 from Maven Central on a free loopback port, with its own metastore on embedded Derby."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from support.free_ports import free_port
from support.servers.maven_jars import classpath_of

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0

OPENED_PACKAGES = (
    *(f"java.base/java.{name}" for name in ("lang", "util", "io", "net", "nio", "time", "text", "lang.reflect")),
    *(f"java.base/java.util.{name}" for name in ("concurrent", "concurrent.atomic", "regex")),
    *("java.base/sun.nio.ch", "java.sql/java.sql"),
)
"""Packages that Hive 4 and its Hadoop access by reflection, which Java 17 allows only for opened packages."""


HIVE_SERVER = "org.apache.hive.service.server.HiveServer2"
METASTORE = "org.apache.hadoop.hive.metastore.HiveMetaStore"


class HiveServer:
    """A running HiveServer2. It executes queries in its own JVM, with Tez in local mode. With `main=METASTORE` it is
    only a metastore service.

    Attributes:
        address: host:port.
        log: file with its output.
    """

    def __init__(self, directory: Path, properties: Mapping[str, str] | None = None, main: str = HIVE_SERVER) -> None:
        (directory / "conf").mkdir(parents=True)
        (directory / "tmp").mkdir()
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.log = directory / "hiveserver2.log"
        settings = configuration({**_properties(directory, self.port), **(properties or {})})
        for name in ("hive-site", "core-site", "tez-site"):
            (directory / "conf" / f"{name}.xml").write_text(settings, encoding="utf-8")
        (directory / "conf" / "log4j2.properties").write_text(LOGGING, encoding="utf-8")
        (directory / "conf" / "hive-log4j2.properties").write_text(LOGGING, encoding="utf-8")
        opened = [f"--add-opens={name}=ALL-UNNAMED" for name in OPENED_PACKAGES]
        command = [
            *("java", "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.timezone=UTC", *opened),
            *(f"-Dderby.stream.error.file={directory / 'derby.log'}", "-Dderby.system.durability=test"),
            *(f"-Djava.io.tmpdir={directory / 'tmp'}", "-cp", f"{directory / 'conf'}:{classpath_of('hive')}"),
            *(main, *(("-p", str(self.port)) if main == METASTORE else ())),
        ]
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(directory),
            "LC_ALL": "C.UTF-8",
            "HADOOP_HOME": str(directory),
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=directory, env=environment
            )
        self._wait_until_ready()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not is_open(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{self.log.stem} did not start:\n{self.log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.2)


def configuration(properties: Mapping[str, str]) -> str:
    """Returns a configuration file of Hadoop with these properties, in XML."""
    lines = (
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
        for name, value in properties.items()
    )
    return "\n".join(("<configuration>", *lines, "</configuration>", ""))


def is_open(port: int) -> bool:
    with socket.socket() as trial:
        trial.settimeout(1)
        return trial.connect_ex(("127.0.0.1", port)) == 0


LOGGING = """\
status = ERROR
appender.console.type = Console
appender.console.name = C
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{2}: %m%n
rootLogger.level = WARN
rootLogger.appenderRef.c.ref = C
"""


def _properties(directory: Path, port: int) -> dict[str, str]:
    temporary = directory / "tmp"
    return {
        "fs.defaultFS": "file:///",
        "hadoop.tmp.dir": str(temporary),
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={directory / 'metastore'};create=true",
        "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
        "datanucleus.schema.autoCreateAll": "true",
        "datanucleus.schema.autoCreateTables": "true",
        "hive.metastore.schema.verification": "false",
        "metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": f"file://{directory / 'warehouse'}",
        "hive.metastore.warehouse.external.dir": f"file://{directory / 'external'}",
        "hive.server2.authentication": "NOSASL",
        "hive.server2.enable.doAs": "false",
        "hive.server2.thrift.port": str(port),
        "hive.server2.thrift.bind.host": "127.0.0.1",
        "hive.server2.webui.port": "0",
        "hive.execution.engine": "tez",
        "tez.local.mode": "true",
        "tez.local.mode.without.network": "true",
        "tez.ignore.lib.uris": "true",
        "tez.runtime.optimize.local.fetch": "true",
        "mapreduce.framework.name": "local",
        "hive.exec.submit.local.task.via.child": "false",
        "hive.server2.tez.initialize.default.sessions": "false",
        "hive.tez.exec.inplace.progress": "false",
        "hive.exec.scratchdir": str(temporary / "hive"),
        "hive.exec.local.scratchdir": str(temporary / "scratch"),
        "hive.downloaded.resources.dir": str(temporary / "resources"),
        "hive.user.install.directory": str(temporary / "install"),
        "hive.querylog.location": str(temporary / "querylog"),
        "hive.async.log.enabled": "false",
        "hive.query.results.cache.enabled": "false",
        "hive.support.concurrency": "false",
        "hive.txn.manager": "org.apache.hadoop.hive.ql.lockmgr.DummyTxnManager",
        "hive.stats.autogather": "false",
        "hive.metastore.event.db.notification.api.auth": "false",
        "hive.security.authorization.manager": "org.apache.hadoop.hive.ql.security.authorization.plugin.sqlstd."
        "SQLStdConfOnlyAuthorizerFactory",
        "hive.notification.event.poll.interval": "0s",
        "hive.server2.materializedviews.registry.impl": "DUMMY",
        "hive.scheduled.queries.executor.enabled": "false",
        "hive.server2.operation.log.enabled": "false",
        "hive.fetch.task.conversion": "more",
        "hive.local.time.zone": "UTC",
    }
