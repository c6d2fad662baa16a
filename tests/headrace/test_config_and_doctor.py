"""`headrace config` and `headrace doctor`, in a folder of their own."""

from __future__ import annotations

import errno
import json
import socket
from pathlib import Path

import pytest

from headrace.cli import main


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's settings and nobody's ports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("REGISTRY__LISTEN", "BROKER__LISTEN", "HIVE__LISTEN"):
        monkeypatch.setenv(f"HEADRACE__{name}", "127.0.0.1:0")


def config(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, str]]:
    assert main(["config", "--format", "json", *arguments]) == 0
    found: dict[str, dict[str, str]] = json.loads(capsys.readouterr().out)
    return found


def test_each_setting_says_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "srv.toml"
    file.write_text(
        'data_dir = "data"\n[kafka]\npassword = "hidden"\n[loader]\ntasks = 3\n[spark]\nmaster = "local[2]"\n'
    )
    monkeypatch.setenv("HEADRACE__LOADER__TASKS", "4")
    found = config(capsys, "--config", str(file), "--interval", "5m")
    assert found["data_dir"] == {"value": str(tmp_path / "data"), "from": str(file)}
    assert found["kafka.password"] == {"value": "***", "from": str(file)}
    assert found["loader.tasks"] == {"value": "4", "from": "the environment"}
    assert found["loader.interval"] == {"value": "5m", "from": "the command line"}
    assert found["loader.codec"]["from"] == "default"
    assert found["spark.master"] == {"value": "local[2]", "from": str(file)}


def test_parts_of_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(config(capsys, "sql", "hive.memory")) == {"sql.listen", "sql.memory", "hive.memory"}
    assert set(config(capsys, "--changed")) == {"registry.listen", "broker.listen", "hive.listen"}
    assert main(["config", "sqll"]) == 2
    assert "there is no section or key 'sqll'; expected some of data_dir, registry" in capsys.readouterr().err


def test_a_misspelt_setting_is_told_with_what_was_meant(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text("[loader]\npartition_bye = 'day'\n")
    assert main(["config"]) == 2
    assert capsys.readouterr().err == (
        f"headrace: unknown setting 'loader.partition_bye' in {tmp_path / 'headrace.toml'}; "
        "did you mean loader.partition_by?\n"
    )


def doctor(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> dict[str, dict[str, str]]:
    assert main(["doctor", "--format", "json", *arguments]) == code
    return {each["need"]: each for each in json.loads(capsys.readouterr().out)}


def test_a_machine_on_which_nothing_was_started_yet_is_well(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = doctor(capsys, 0)
    assert found["hard links, for decisions"]["is_well"]
    assert "not made yet" in found["warehouse"]["found"]
    assert found["loads go on"]["found"] == "nothing was loaded yet"
    assert list(tmp_path.iterdir()) == [], "it looks, and leaves nothing"
    assert main(["doctor"]) == 0
    assert all(line.startswith("ok ") for line in capsys.readouterr().out.splitlines())


def test_what_is_not_well_is_told_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listener, socket.socket() as unused:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        unused.bind(("127.0.0.1", 0))
        taken = f"127.0.0.1:{listener.getsockname()[1]}"
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        found = doctor(
            capsys,
            1,
            *("--broker-listen", taken, "--registry-url", f"http://{nobody}", "--metastore", f"thrift://{nobody}"),
        )
    assert found["broker.listen"]["cure"] == "stop what listens there, or set broker.listen before `up`"
    assert "connection refused" in found["registry"]["found"].lower()
    assert found["registry"]["cure"] == "start it, or mend registry.url"
    assert found["metastore"]["found"] == f"nobody accepts connections at thrift://{nobody}"
    assert "hive.listen" not in found
    assert "registry.listen" not in found


def test_a_damaged_log_of_decisions_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "headrace-data" / "warehouse" / "_headrace"
    log.mkdir(parents=True)
    (log / "format.json").write_text('{"format": 99, "read_min": 99, "write_min": 99}')
    found = doctor(capsys, 1)["loads go on"]
    assert "99" in found["found"]
    assert found["cure"]


def test_a_warehouse_elsewhere_that_does_not_answer_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "ConnectException: Connection refused", "hdfs://nn/w/_headrace/state.json")

    monkeypatch.setattr("headrace.loader.storage.hadoop.jvm.HdfsFileSystem.length", refuse)
    found = doctor(capsys, 1, "--warehouse", "hdfs://nn/w")
    assert found["warehouse"]["found"].startswith("hdfs://nn/w, reached through Spark's JVM")
    assert found["loads go on"]["found"] == "ConnectException: Connection refused"
    assert found["loads go on"]["cure"]
    assert "hard links, for decisions" not in found
