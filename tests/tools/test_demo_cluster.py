"""The commands that `make demo-cluster` starts, and its errors when HiveServer2 fails."""

from __future__ import annotations

import importlib.util
import sys
import urllib.request
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pyhive.exc
import pytest
from py4j.protocol import Py4JError
from thrift.transport.TTransport import TTransportException

from headrace.pipeline.demo.steps import DemoError
from headrace.settings import load_settings
from support.checkout import ROOT

REFUSED = SimpleNamespace(status=SimpleNamespace(errorMessage="Error running query:\n  Tez failed"))


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_cluster", ROOT / "tools" / "demo_cluster.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            pyhive.exc.OperationalError(REFUSED),
            "PyHive: HiveServer2 failed: Error running query: Tez failed",
        ),
        (TTransportException(message="closed"), "PyHive: HiveServer2 failed: closed"),
        (Py4JError("no\nline"), "beeline's driver: HiveServer2 failed: no line"),
    ],
)
def test_failure_of_hiveserver2_is_one_line_with_its_log(tool: ModuleType, error: Exception, message: str) -> None:
    with pytest.raises(tool.DEMO_FAILURES) as raised, tool.hive_errors_as_demo_errors(Path("/demo/hive.log")):
        raise error
    assert isinstance(raised.value, DemoError)
    assert str(raised.value) == f"{message}; see /demo/hive.log"


def test_load_runs_the_command_and_environment_of_its_unit(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE__LOADER__TASKS", "7")
    paths = {tool.SETTINGS_FILE: "/here/headrace.toml", tool.HADOOP_CONF: "/here/conf"}
    cluster = tool.Cluster(tmp_path)
    cluster._load = cluster._service("headrace-load.service", tmp_path / "home", paths)
    command = cluster.command("load")
    program = str(Path(sys.executable).parent / "headrace")
    assert list(command.words) == [program, "load", "--config", "/here/headrace.toml"]
    assert set(command.environment) == {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "HADOOP_CONF_DIR"}
    assert command.environment["HADOOP_CONF_DIR"] == "/here/conf"
    example = (tool.EXAMPLES / "systemd" / "headrace-load.service").read_text()
    for example_path, local_path in {tool.PROGRAM: program, **paths}.items():
        example = example.replace(example_path, local_path)
    assert (tmp_path / "systemd" / "headrace-load.service").read_text() == example


@pytest.mark.servers
def test_registry_runs_the_commands_of_its_unit(tool: ModuleType, tmp_path: Path) -> None:
    """Runs the migration first, on an empty database, with the settings of the example."""
    cluster = tool.Cluster(tmp_path)
    try:
        address = cluster._registry(f"sqlite:///{tmp_path / 'registry.db'}").addresses["registry"]
        with urllib.request.urlopen(f"{address}/subjects", timeout=30) as response:
            assert response.read() == b"[]"
    finally:
        cluster.stop()


def test_settings_are_those_of_the_example(tool: ModuleType, tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text(
        tool.adapt_to_this_machine(tool.with_values(tool.EXAMPLES / "headrace.toml", {"server_auth": "NOSASL"}))
    )
    settings = load_settings(config=config)
    assert (settings.loader.partition_by, settings.loader.tasks) == ("day", 1)
    assert (settings.hive.server_auth, settings.spark["yarn.am.memory"]) == ("NOSASL", "512m")


def test_example_without_an_expected_key_or_path_is_an_error(tool: ModuleType, tmp_path: Path) -> None:
    unit = tmp_path / "x.service"
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    with pytest.raises(DemoError, match="the path /opt"):
        tool.with_paths(unit, {tool.PROGRAM: "/here"})
    with pytest.raises(DemoError, match="the key listen occurs 0 times"):
        tool.with_values(unit, {"listen": "127.0.0.1:0"})
