"""Starts a YARN from Maven Central on an `Hdfs`, and packs the Python environment of its containers.

The ResourceManager and the NodeManager are JVMs on free loopback ports.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from support.checkout import ROOT
from support.free_ports import free_port
from support.hive.hive_server import configuration
from support.servers.hdfs import Hdfs
from support.servers.maven_jars import classpath_of

READY_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"


class Yarn:
    """A running YARN. `conf` is the directory for clients' `HADOOP_CONF_DIR`, which configures YARN and HDFS."""

    def __init__(self, directory: Path, hdfs: Hdfs) -> None:
        self.directory = directory
        self.conf = directory / "conf"
        for name in ("cluster", "node", "static"):
            (self.conf / "webapps" / name).mkdir(parents=True)  # the jars require them but have none
        for name in ("core-site.xml", "hdfs-site.xml", "log4j.properties"):
            shutil.copy(hdfs.conf / name, self.conf)
        self.web = f"127.0.0.1:{free_port()}"
        (self.conf / "yarn-site.xml").write_text(configuration(self._settings()), encoding="utf-8")
        java = [
            *("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--add-opens=java.base/java.lang=ALL-UNNAMED"),
            *(f"-Dhadoop.log.dir={directory}", f"-Dyarn.log.dir={directory}", f"-Dhadoop.home.dir={directory}"),
            *("-cp", f"{self.conf}:{classpath_of('yarn')}"),
        ]
        self._processes = []
        for main, heap in ((RESOURCE_MANAGER, "-Xmx400m"), (NODE_MANAGER, "-Xmx300m")):
            with (directory / f"{main.rpartition('.')[2]}.log").open("wb") as log:
                command = [java[0], heap, *java[1:], main]
                self._processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        self._wait_until_ready()

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()  # its data is no longer needed
            process.wait(STOP_TIMEOUT_S)

    def applications(self) -> list[dict[str, Any]]:
        """Returns the ResourceManager's applications, oldest first."""
        apps = (self._get("apps")["apps"] or {"app": []})["app"]
        return sorted(apps, key=lambda app: int(app["startedTime"]))

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._is_ready():
            if any(process.poll() is not None for process in self._processes) or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"YARN did not start; logs are in {self.directory}")
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        try:
            return int(self._get("metrics")["clusterMetrics"]["activeNodes"]) == 1
        except OSError:
            return False

    def _get(self, resource: str) -> Any:
        with urllib.request.urlopen(f"http://{self.web}/ws/v1/cluster/{resource}", timeout=10) as response:
            return json.load(response)

    def _settings(self) -> dict[str, str]:
        def at() -> str:
            return f"127.0.0.1:{free_port()}"

        manager = "yarn.resourcemanager"
        return {
            f"{manager}.hostname": "127.0.0.1",
            **{f"{manager}.{name}address": at() for name in ("scheduler.", "resource-tracker.", "", "admin.")},
            f"{manager}.webapp.address": self.web,
            f"{manager}.scheduler.class": f"{RESOURCE_MANAGER.rpartition('.')[0]}.scheduler.fifo.FifoScheduler",
            "yarn.nodemanager.hostname": "127.0.0.1",
            **{f"yarn.nodemanager.{name}address": at() for name in ("", "localizer.", "webapp.")},
            "yarn.nodemanager.resource.memory-mb": "6144",
            "yarn.nodemanager.resource.cpu-vcores": "4",
            "yarn.scheduler.minimum-allocation-mb": "256",
            "yarn.nodemanager.local-dirs": str(self.directory / "local"),
            "yarn.nodemanager.log-dirs": str(self.directory / "containers"),
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.env-whitelist": "JAVA_HOME",
            "yarn.nodemanager.delete.debug-delay-sec": "600",
        }


def pack_environment(directory: Path, extra: str = "executor") -> Path:
    """Packs this checkout, with the libraries of an extra, into an archive for `spark.archives`, as docs/cluster.md
    describes."""
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "headrace-data", "__pycache__", "tests", "docs")
    source = shutil.copytree(ROOT, directory / "source", ignore=ignored)
    archive = directory / "headrace.tgz"
    pack = [str(ROOT / "examples" / "cluster" / "pack.sh"), str(source), str(archive), extra]
    subprocess.run(pack, check=True, env={**os.environ, "PYTHON": sys.executable}, timeout=900)
    return archive
