"""Runs the metastore of Hive 2.3, which is in the PySpark wheel, as a service on PostgreSQL."""

from __future__ import annotations

import subprocess
import time
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

from pyspark.find_spark_home import _find_spark_home

from support.hive.hive_server import METASTORE, READY_TIMEOUT_S, STOP_TIMEOUT_S, configuration, free_port, is_open
from support.servers.maven_jars import classpath_of

SCHEMA_TOOL = "org.datanucleus.store.schema.SchemaTool"
TOOL_PROPERTIES = {
    "javax.jdo.PersistenceManagerFactoryClass": "org.datanucleus.api.jdo.JDOPersistenceManagerFactory",
    "datanucleus.schema.autoCreateAll": "true",
    "datanucleus.identifierFactory": "datanucleus1",
    "datanucleus.rdbms.useLegacyNativeValueStrategy": "true",
    "datanucleus.rdbms.initializeColumnInfo": "NONE",
    "datanucleus.schema.validateAll": "false",
}


class WheelMetastore:
    """`uri` is the value for `hive.metastore`. The tables are created beforehand, because the metastore deadlocks when
    it creates them on PostgreSQL.
    """

    def __init__(self, directory: Path, database_url: str) -> None:
        directory.mkdir(parents=True)
        url_parts = urlsplit(database_url)
        connection = {
            "javax.jdo.option.ConnectionURL": f"jdbc:postgresql://{url_parts.hostname}:{url_parts.port}{url_parts.path}",
            "javax.jdo.option.ConnectionDriverName": "org.postgresql.Driver",
            "javax.jdo.option.ConnectionUserName": url_parts.username or "",
            "javax.jdo.option.ConnectionPassword": url_parts.password or "",
        }
        settings = {
            "hive.metastore.schema.verification": "false",
            "hive.async.log.enabled": "false",
            "hive.hmshandler.retry.attempts": "1",
            "hive.metastore.warehouse.dir": f"file://{directory / 'warehouse'}",
        }
        (directory / "hive-site.xml").write_text(configuration({**connection, **settings}), encoding="utf-8")
        jars = Path(_find_spark_home()) / "jars"
        self._java = ["java", "--add-opens=java.base/java.net=ALL-UNNAMED", f"-Djava.io.tmpdir={directory}", "-cp"]
        self._classpath = f"{directory}:{jars}/*:{classpath_of('postgres-jdbc')}"
        self._make_tables(directory, jars, {**connection, **TOOL_PROPERTIES})
        port = free_port()
        self.uri = f"thrift://127.0.0.1:{port}"
        with (directory / "log").open("wb") as log:
            command = [*self._java, self._classpath, METASTORE, "-p", str(port)]
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=directory)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not is_open(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError((directory / "log").read_text(errors="replace")[-3000:])
            time.sleep(0.2)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)

    def _make_tables(self, directory: Path, jars: Path, properties: dict[str, str]) -> None:
        (archive,) = jars.glob("hive-metastore-2*.jar")
        with zipfile.ZipFile(archive) as jar:
            jar.extract("package.jdo", directory)
        properties_file = directory / "tool.properties"
        properties_file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()), encoding="utf-8")
        tool = [*self._java, self._classpath, SCHEMA_TOOL, "-create", "-api", "JDO", "-props", str(properties_file)]
        done = subprocess.run(
            [*tool, str(directory / "package.jdo")],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
