"""`make demo-cluster`: the flights of `headrace demo` through the servers of a real cluster on this machine.

The registry uses PostgreSQL; the broker is an Apache Kafka with passwords over TLS; loads run on YARN from the packed
environment; the files are on HDFS and the tables in HiveServer2. The settings and systemd units are those of
examples/cluster, with addresses and paths of this machine. Registry and loads run the commands of their units, in the
environment of these units only. PyHive and beeline's driver query HiveServer2 and must return equal results, and Pig
counts the files. Maven downloads the servers, about 700 MB the first time; the tests start the same ones.

Exit codes: 0 all results are correct; 1 a result is wrong, or events are missing; 2 failure.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import pyhive.exc  # noqa: E402
import pytest  # noqa: E402  # the test servers raise its skip exception for missing programs
from py4j.protocol import Py4JError  # noqa: E402
from pyhive import hive  # noqa: E402
from thrift.Thrift import TException  # noqa: E402

from headrace.hive_ddl.executors.jvm_errors import one_line, root_cause  # noqa: E402
from headrace.pipeline.demo.data import DemoDataError, find_data  # noqa: E402
from headrace.pipeline.demo.environment import PrintDetail, RunnableCommand, RunQuery  # noqa: E402
from headrace.pipeline.demo.flights import run_demo_in  # noqa: E402
from headrace.pipeline.demo.queries import Table, differences  # noqa: E402
from headrace.pipeline.demo.steps import DemoError, prepare_directory  # noqa: E402
from headrace.settings import Settings, load_settings  # noqa: E402
from support.hive.hive_jdbc import HiveJdbc  # noqa: E402
from support.hive.hive_server import HiveServer  # noqa: E402
from support.hive.pig import Pig  # noqa: E402
from support.running_service import Service  # noqa: E402
from support.servers.apache_kafka import ApacheKafka  # noqa: E402
from support.servers.hdfs import Hdfs  # noqa: E402
from support.servers.kafka_security import KafkaSecurity  # noqa: E402
from support.servers.postgres_server import PostgresServer  # noqa: E402
from support.servers.yarn import Yarn, pack_environment  # noqa: E402
from support.systemd_unit import SystemdService, parse_service  # noqa: E402

EXAMPLES = ROOT / "examples" / "cluster"
PROGRAM = "/opt/headrace/.venv/bin/headrace"
SETTINGS_FILE = "/etc/headrace/headrace.toml"
HADOOP_CONF = "/etc/hadoop/conf"
HOME = "/var/lib/headrace"
"""The data directory in the examples. The program replaces it, and the paths above, by paths of this machine."""
DATA_DIR = ROOT / "headrace-data" / "demo-cluster"
DATABASE = "headrace"
# Partitions by day for a year of events; one task, since there is one executor.
LOADER = """\
partition_by = "day"
tasks = 1
"""
# The whole cluster is one small machine, which has Spark's jars.
SMALL = """\
"yarn.am.memory" = "512m"
"driver.host" = "127.0.0.1"
"""
DEMO_FAILURES = (
    *(DemoError, DemoDataError),
    # raised by servers that do not start
    *(RuntimeError, AssertionError, subprocess.SubprocessError, pytest.skip.Exception),
)
COUNTED = "SELECT carrier, count(*) FROM flights GROUP BY carrier ORDER BY carrier"


class Cluster:
    """The cluster as an environment of the demo: starts its servers and runs commands with their settings, see
    `headrace.pipeline.demo.environment.DemoEnvironment`."""

    settings: Settings

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._servers = ExitStack()

    def start(self, detail: PrintDetail) -> None:
        directory = self._directory
        postgres = PostgresServer()
        self._servers.callback(postgres.remove)
        registry = self._registry(postgres.new_database())
        detail(f"registry on PostgreSQL: {registry.addresses['registry']}, started as by headrace-registry.service")
        security = KafkaSecurity(directory / "kafka-security")
        kafka = ApacheKafka(directory / "kafka", security)
        self._servers.callback(kafka.stop)
        detail(f"Apache Kafka, SCRAM over TLS: {kafka.secured['LOGIN']}")
        self._hdfs = Hdfs(directory / "hdfs")
        self._servers.callback(self._hdfs.stop)
        yarn = Yarn(directory / "yarn", self._hdfs)
        self._servers.callback(yarn.stop)
        detail(f"HDFS: {self._hdfs.uri}, YARN: http://{yarn.web}")
        self._hive = HiveServer(directory / "hive")
        self._servers.callback(self._hive.stop)
        detail(f"HiveServer2: {self._hive.address}")
        archive = pack_environment(directory)
        detail(f"the environment of the tasks: {archive.stat().st_size / 1e6:.0f} MB")
        client = security.client("LOGIN", kafka.secured["LOGIN"], "SCRAM-SHA-512")
        self._config = directory / "headrace.toml"
        text = with_values(
            EXAMPLES / "headrace.toml",
            {
                "data_dir": str(directory / "data"),
                **{name: getattr(client, name) for name in ("bootstrap_servers", "ca", "user", "password_file")},
                "url": registry.addresses["registry"],
                "warehouse": f"{self._hdfs.uri}/data/headrace",
                "executor": f"hive://{self._hive.address}",
                "server_auth": "NOSASL",  # the HiveServer2 of the tests has no authentication
                "yarn.dist.archives": f"{archive}#env",
                "executor.instances": "1",
                "executor.memory": "512m",
            },
        )
        self._config.write_text(adapt_to_this_machine(text), encoding="utf-8")
        self._load = self._service(
            "headrace-load.service",
            directory / "data",
            {SETTINGS_FILE: str(self._config), HADOOP_CONF: str(yarn.conf)},
        )
        (directory / "data").mkdir()
        self.settings = load_settings(config=self._config)

    def _registry(self, database_url: str) -> Service:
        home, config = self._directory / "registry", self._directory / "registry.toml"
        home.mkdir()
        values = {"data_dir": str(home), "listen": "127.0.0.1:0", "database_url": database_url}
        config.write_text(with_values(EXAMPLES / "registry.toml", values), encoding="utf-8")
        unit = self._service("headrace-registry.service", home, {SETTINGS_FILE: str(config), HOME: str(home)})
        for words in unit.before:
            subprocess.run(words, check=True, env=unit.environment, cwd=unit.directory, stdout=subprocess.DEVNULL)
        registry = Service([*unit.start], unit.environment, unit.directory, program=(), inherited={})
        self._servers.callback(registry.stop)
        return registry

    def _service(self, name: str, home: Path, paths: Mapping[str, str]) -> SystemdService:
        """Writes a systemd unit of the examples with the paths of this machine, and returns the service that it
        defines.

        Args:
            name: file name of the unit.
            home: home directory of the service's user.
            paths: the paths of this machine, by the path in the example.
        """
        text = with_paths(
            EXAMPLES / "systemd" / name, {PROGRAM: str(Path(sys.executable).parent / "headrace"), **paths}
        )
        units = self._directory / "systemd"
        units.mkdir(exist_ok=True)
        (units / name).write_text(text, encoding="utf-8")
        return parse_service(text, home)

    def command(self, *arguments: str) -> RunnableCommand:
        """Returns a `headrace` command with its environment. A load runs as in its systemd unit. Other commands run as
        a user types them in a shell, with the variables from docs/cluster.md."""
        if arguments == ("load",):
            return RunnableCommand(self._load.start, self._load.environment, self._load.directory)
        typed = [sys.executable, "-P", "-m", "headrace", *arguments]
        message = {"HEADRACE_CONFIG": str(self._config), "HADOOP_CONF_DIR": self._load.environment["HADOOP_CONF_DIR"]}
        return RunnableCommand(typed, {**os.environ, **message})

    def stop(self) -> None:
        self._servers.close()

    @contextmanager
    def engine(self, detail: PrintDetail) -> Iterator[RunQuery]:
        host, _, port = self._hive.address.rpartition(":")
        with hive_errors_as_demo_errors(self._hive.log):
            connection = hive.connect(host, int(port), auth="NOSASL", database=DATABASE)
        with closing(connection):
            with hive_errors_as_demo_errors(self._hive.log):
                jdbc = HiveJdbc(f"jdbc:hive2://{self._hive.address}/{DATABASE};auth=noSasl")
            with closing(jdbc):

                def query_both(query: str) -> Table:
                    with hive_errors_as_demo_errors(self._hive.log):
                        pyhive_result, jdbc_result = run_query(connection, query), jdbc.query(query)
                    if different := differences(jdbc_result, pyhive_result):
                        raise DemoError(f"beeline's driver and PyHive return different results: {different[0]}")
                    return pyhive_result

                detail("PyHive and beeline's driver return the same results")
                yield query_both
                counted = [(str(carrier), int(number)) for carrier, number in query_both(COUNTED)]
        found = self._counted_by_pig()
        if found != counted:
            raise DemoError(f"Pig counts {found} and HiveServer2 {counted}")
        detail("Pig counts the same number of flights per carrier in the files")

    def _counted_by_pig(self) -> list[tuple[str, int]]:
        flights = f"{self._hdfs.uri}/data/headrace/flights"
        script = (
            f"t = LOAD '{flights}/dt=*' USING AvroStorage('', '-f {flights}/_schema/current.avsc');\n"
            "result = FOREACH (GROUP t BY carrier) GENERATE group, COUNT(t);"
        )
        lines = Pig(self._directory / "pig", "pig").dump(script)
        return [(carrier, int(number)) for carrier, number in (line.strip("()").split(",") for line in lines)]

    def next_steps(self) -> Sequence[str]:
        units = self._directory / "systemd" / "*"
        return (f"less {self._directory / 'headrace.toml'}", f"less {units}", "less docs/cluster.md")

    def console_url(self) -> str:
        return ""


def with_values(example: Path, values: Mapping[str, str]) -> str:
    """Returns the text of a settings file of the examples with other values for some keys.

    Args:
        values: the new values, by key. Each key must occur once in the file.
    """
    text = example.read_text(encoding="utf-8")
    for key, value in values.items():
        line = re.compile(rf'^("?{re.escape(key)}"?) = "[^"]*"', re.MULTILINE)
        text, count = line.subn(lambda match, value=value: f'{match[1]} = "{value}"', text)
        if count != 1:
            raise DemoError(
                f"{example}: the key {key} occurs {count} times, expected once; adapt the keys in tools/demo_cluster.py"
            )
    return text


def with_paths(unit: Path, paths: Mapping[str, str]) -> str:
    """Returns the text of a systemd unit with other paths.

    Args:
        paths: the new paths, by the path in the unit. Each must occur there.
    """
    text = unit.read_text(encoding="utf-8")
    for path, local_path in paths.items():
        if path not in text:
            raise DemoError(f"{unit}: the path {path} does not occur; adapt tools/demo_cluster.py")
        text = text.replace(path, local_path)
    return text


def adapt_to_this_machine(text: str) -> str:
    from pyspark.find_spark_home import _find_spark_home

    lines = [line for line in text.splitlines(keepends=True) if not line.startswith('"yarn.archive"')]
    text = "".join(lines).replace("[loader]\n", f"[loader]\n{LOADER}")
    return "".join((text, f'"yarn.jars" = "local:{_find_spark_home()}/jars/*"\n', SMALL))


@contextmanager
def hive_errors_as_demo_errors(log: Path) -> Iterator[None]:
    """Converts errors of HiveServer2 in the context to a `DemoError` that names the server's log, since its messages
    rarely contain the cause.

    Args:
        log: path of HiveServer2's log.
    """
    try:
        yield
    except Py4JError as error:
        raise DemoError(f"beeline's driver: HiveServer2 failed: {root_cause(error)}; see {log}") from error
    except (pyhive.exc.Error, TException) as error:
        status = getattr(error.args[0] if error.args else None, "status", None)
        reason = one_line(getattr(status, "errorMessage", None) or str(error)) or type(error).__name__
        raise DemoError(f"PyHive: HiveServer2 failed: {reason}; see {log}") from error


def run_query(connection: Any, query: str) -> Table:
    with closing(connection.cursor()) as cursor:
        cursor.execute(query)
        return [tuple(row) for row in cursor.fetchall()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data-dir", type=Path, default=DATA_DIR, help="directory of all files; emptied at the next run"
    )
    directory = parser.parse_args().data_dir.resolve()
    try:
        prepare_directory(directory)
        result = run_demo_in(Cluster(directory), find_data(), directory / "logs", sys.stdout)
    except DEMO_FAILURES as error:
        print(f"demo-cluster: {error}", file=sys.stderr)
        return 2
    return 0 if result.is_correct else 1


if __name__ == "__main__":
    sys.exit(main())
