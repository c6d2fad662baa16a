"""Starts an HDFS from Maven Central: a NameNode and a DataNode as two JVMs on free loopback ports.

Tests read its files over WebHDFS, so that they do not use the client that they test.
"""

from __future__ import annotations

import getpass
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from support.free_ports import free_port
from support.servers.maven_jars import classpath_of

MEMORY = Path("/dev/shm")
READY_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
CALLS_MAX = 5
NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"


class Hdfs:
    """A running HDFS. The user of this process is its superuser.

    Args:
        properties: properties of hdfs-site.xml that override the defaults of tests.

    Attributes:
        uri: hdfs://host:port, without a directory.
        conf: the directory for clients' `HADOOP_CONF_DIR`.
    """

    def __init__(self, directory: Path, properties: Mapping[str, object] = MappingProxyType({})) -> None:
        self.directory = directory
        self.conf = directory / "conf"
        for name in ("hdfs", "datanode", "static", "secondary"):
            (self.conf / "webapps" / name).mkdir(parents=True)  # the jar requires them but has none
        self._ports = {name: free_port() for name in ("rpc", "http", "data", "data_http", "data_ipc")}
        self.uri = f"hdfs://127.0.0.1:{self._ports['rpc']}"
        # In memory, because the NameNode syncs every change of a name, and tests kill only processes.
        self._names = Path(tempfile.mkdtemp(prefix="headrace-names-", dir=MEMORY if MEMORY.is_dir() else None))
        _write(self.conf / "core-site.xml", {"fs.defaultFS": self.uri, "hadoop.tmp.dir": directory / "tmp"})
        _write(self.conf / "hdfs-site.xml", {**self._settings(), **properties})
        (self.conf / "log4j.properties").write_text(
            "log4j.rootLogger=INFO,c\nlog4j.appender.c=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.c.target=System.err\nlog4j.appender.c.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.c.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n\n"
        )
        classpath = f"{self.conf}:{classpath_of('hdfs')}"
        self._java = [
            *("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("--add-opens", "java.base/java.lang=ALL-UNNAMED", f"-Dhadoop.log.dir={directory}", "-cp", classpath),
        ]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        format_it = [*self._java, NAME_NODE, "-format", "-nonInteractive"]
        subprocess.run(format_it, check=True, capture_output=True, timeout=READY_TIMEOUT_S)
        self.start(NAME_NODE)
        self.start(DATA_NODE)
        self.wait_until_ready()

    def start(self, main: str) -> None:
        with (self.directory / f"{main.rpartition('.')[2]}.log").open("ab") as log:
            self.processes[main] = subprocess.Popen([*self._java, main], stdout=log, stderr=subprocess.STDOUT)

    def kill(self, main: str) -> None:
        self.processes[main].kill()
        self.processes[main].wait()

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()  # its data is no longer needed
            process.wait(STOP_TIMEOUT_S)
        shutil.rmtree(self._names, ignore_errors=True)

    def wait_until_ready(self) -> None:
        """Waits until a DataNode serves and the NameNode is out of safe mode."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._is_ready():
            dead = [main for main, process in self.processes.items() if process.poll() is not None]
            if dead or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"HDFS did not start: {dead or 'it is not ready'}; logs are in {self.directory}")
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        try:
            names = self._bean("http", "NameNode", "FSNamesystemState")
            if int(names["NumLiveDataNodes"]) != 1 or names["FSState"] != "Operational":
                return False
            # After a short restart of the DataNode the NameNode may still count its old registration as live.
            pools = json.loads(self._bean("data_http", "DataNode", "DataNodeInfo")["NamenodeAddresses"])
            return bool(pools) and all(pools.values())
        except (OSError, LookupError):
            return False

    def _bean(self, port: str, service: str, name: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._ports[port]}/jmx?qry=Hadoop:service={service},name={name}"
        with urllib.request.urlopen(url, timeout=10) as response:
            bean: dict[str, Any] = json.load(response)["beans"][0]
        return bean

    def admin(self, *arguments: str) -> str:
        """Returns the output of `hdfs dfsadmin`."""
        command = [*self._java, "org.apache.hadoop.hdfs.tools.DFSAdmin", *arguments]
        run = subprocess.run(command, capture_output=True, text=True, timeout=READY_TIMEOUT_S, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    def call(self, method: str, path: str, operation: str) -> bytes:
        """Sends a request of WebHDFS as the superuser, and returns the response.

        Retries status 403: a DataNode rejects its first request after the NameNode's restart.
        """
        url = f"http://127.0.0.1:{self._ports['http']}/webhdfs/v1{quote(path)}?user.name={getpass.getuser()}&op={operation}"
        for retries_left in reversed(range(CALLS_MAX)):
            try:
                with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as response:
                    content: bytes = response.read()
                return content
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.FORBIDDEN:
                    raise
                message = error.read().decode(errors="replace")
                assert retries_left, f"{method} {url}: {message}"
                print(f"retrying: {method} {url}: {message}")
                time.sleep(1)
        raise AssertionError("unreachable")

    def files(self, directory: str) -> Iterator[tuple[str, int]]:
        """Yields the path and length of all files below a directory; nothing if it does not exist."""
        try:
            statuses = json.loads(self.call("GET", directory, "LISTSTATUS"))["FileStatuses"]["FileStatus"]
        except urllib.error.HTTPError:
            return
        for status in statuses:
            path = f"{directory.rstrip('/')}/{status['pathSuffix']}"
            if status["type"] == "DIRECTORY":
                yield from self.files(path)
            else:
                yield path, int(status["length"])

    def fetch(self, directory: str, target: Path) -> Path:
        """Copies all files below a directory to a local one, which it empties first."""
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for path, _ in self.files(directory):
            local = target / path.removeprefix(f"{directory}/")
            local.parent.mkdir(parents=True, exist_ok=True)
            local.write_bytes(self.call("GET", path, "OPEN"))
        return target

    def _settings(self) -> dict[str, object]:
        def at(name: str) -> str:
            return f"127.0.0.1:{self._ports[name]}"

        return {
            "dfs.namenode.name.dir": f"file://{self._names}",
            "dfs.datanode.data.dir": f"file://{self.directory}/blocks",
            "dfs.replication": 1,
            "dfs.namenode.rpc-address": at("rpc"),
            "dfs.namenode.http-address": at("http"),
            "dfs.datanode.address": at("data"),
            "dfs.datanode.http.address": at("data_http"),
            "dfs.datanode.ipc.address": at("data_ipc"),
            "dfs.datanode.hostname": "127.0.0.1",
            "dfs.client.use.datanode.hostname": "true",
            "dfs.permissions.enabled": "false",
            "dfs.namenode.safemode.extension": 0,
            "dfs.namenode.safemode.min.datanodes": 1,
            # Detects killed and restarted DataNodes within seconds.
            "dfs.heartbeat.interval": 1,
            "dfs.namenode.heartbeat.recheck-interval": 1000,
        }


def _write(path: Path, properties: dict[str, object] | dict[str, Any]) -> None:
    rows = "".join(
        f"<property><name>{key}</name><value>{value}</value></property>\n" for key, value in properties.items()
    )
    path.write_text(f"<configuration>\n{rows}</configuration>\n")
