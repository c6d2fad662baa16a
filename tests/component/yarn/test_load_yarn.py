"""`headrace load` on a real YARN: executors get nothing from this machine except the packed environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.checkout import ROOT
from support.loader.load_world import FIELDS, NOTE
from support.loader.remote_world import RemoteWorld
from support.servers.hdfs import Hdfs
from support.servers.yarn import Yarn, pack_environment

pytestmark = [pytest.mark.yarn, pytest.mark.spark, pytest.mark.timeout(1200)]

WAREHOUSE = "/warehouse"


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    hdfs = Hdfs(tmp_path_factory.mktemp("hdfs"))
    yield hdfs
    hdfs.stop()


@pytest.fixture(scope="module")
def yarn(hdfs: Hdfs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    yarn = Yarn(tmp_path_factory.mktemp("yarn"), hdfs)
    yield yarn
    yarn.stop()


class YarnWorld(RemoteWorld):
    """A world whose loads read the Spark master from a settings file. `archive` contains the Python environment of
    tasks."""

    config: Path
    archive: Path

    def flags(self, *more: str) -> list[str]:
        words = super().flags(*more)
        at = words.index("--master")
        return ["--config", str(self.config), *words[:at], *words[at + 2 :]]


@pytest.fixture(scope="module")
def world(hdfs: Hdfs, yarn: Yarn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnWorld]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(yarn.conf))
        patch.delenv("PYSPARK_PYTHON", raising=False)
        directory = tmp_path_factory.mktemp("load")
        world = YarnWorld(directory, f"{hdfs.uri}{WAREHOUSE}", lambda target: hdfs.fetch(WAREHOUSE, target))
        world.config = directory / "headrace.toml"
        world.archive = pack_environment(tmp_path_factory.mktemp("environment"))
        world.config.write_text(settings(world.archive), encoding="utf-8")
        yield world
        world.close()


def settings(archive: Path) -> str:
    return f"""\
[spark]
master = "yarn"
"yarn.dist.archives" = "{archive}#env"
"pyspark.python" = "./env/bin/python"
"executor.instances" = "1"
"executor.memory" = "512m"
"yarn.am.memory" = "512m"
"driver.host" = "127.0.0.1"
"yarn.jars" = "local:{spark_home()}/jars/*"
"""


def spark_home() -> Path:
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


def test_loads_in_yarn_containers_leave_complete_tables(world: YarnWorld, yarn: Yarn) -> None:
    world.produce("orders", 40)
    world.load_completely()
    world.produce("orders", 20, fields=[*FIELDS, NOTE])
    world.load_completely()
    applications = yarn.applications()
    assert [app["finalStatus"] for app in applications] == ["SUCCEEDED", "SUCCEEDED"]
    assert all(app["name"] == "headrace load" for app in applications)
    assert world.staged() == []


def test_driver_in_a_yarn_container_loads_completely(world: YarnWorld, yarn: Yarn, tmp_path: Path) -> None:
    """Submits the load as docs/cluster.md describes. All machines must share the data directory; here there is one
    machine."""
    world.produce("orders", 20, fields=[*FIELDS, NOTE])
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "yarn", "--deploy-mode", "cluster"]
    properties = {
        "yarn.appMasterEnv.PYSPARK_PYTHON": "./env/bin/python",
        "yarn.jars": f"local:{spark_home()}/jars/*",
        "driver.memory": "1g",
        "yarn.submit.waitAppCompletion": "true",
    }
    done = subprocess.run(
        [
            *submit,
            *("--archives", f"{pack_environment(tmp_path, 'driver')}#env"),
            *(word for key, value in properties.items() for word in ("--conf", f"spark.{key}={value}")),
            str(ROOT / "examples" / "cluster" / "load.py"),
            *world.flags(),
        ],
        env={**os.environ, "SPARK_HOME": str(spark_home())},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert yarn.applications()[-1]["finalStatus"] == "SUCCEEDED"
    world.check(whole=True)
