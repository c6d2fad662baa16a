"""The commands `headrace registry replicate` and `promote` next to running registries."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.registry.client import RegistryClient, transport
from support.registry.migrated_databases import SqliteTemplate
from support.registry.registry_calls import Registry
from support.registry.served_registry import serve_registry

StartService = Callable[..., Any]


def fixed(number: int) -> str:
    return f'{{"type":"fixed","name":"F{number}","size":{number}}}'


def eventually(holds: Callable[[], bool]) -> bool:
    """Waits up to a minute until a condition holds, and returns whether it does."""
    end = time.monotonic() + 60
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def lag_s(registry: Registry) -> float:
    found = re.search(r"^headrace_registry_replication_lag_seconds (\S+)$", registry.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.mark.servers
def test_replica_survives_kills_and_is_promoted_after_loss_of_its_source(
    start_service: StartService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(name: str) -> Any:
        directory = str(tmp_path / name)
        return start_service(
            "headrace", "registry", "serve", "--data-dir", directory, "--registry-listen", "127.0.0.1:0"
        )

    first_service = serve("first")
    first = Registry(first_service.addresses["registry"])
    first.registered("s1", fixed(1))

    def replicate() -> Any:
        directory = str(tmp_path / "second")
        return start_service(
            *(
                "headrace",
                "registry",
                "replicate",
                "--data-dir",
                directory,
                "--registry-url",
                first.url,
                "--pause",
                "0.05",
            )
        )

    replication = replicate()
    assert replication.addresses["replica"] == first.url
    second = Registry(serve("second").addresses["registry"])
    assert second.get("/subjects").json == ["s1"]
    first.registered("s2", fixed(2))
    assert eventually(lambda: second.get("/schemas/ids/2").text == first.get("/schemas/ids/2").text)
    assert second.register("s3", fixed(3)).status == 422

    replication.kill()
    first.registered("s3", fixed(3))
    first.delete("/subjects/s1")
    assert second.get("/subjects").json == ["s1", "s2"]
    replication = replicate()
    assert eventually(lambda: second.get("/subjects").json == ["s2", "s3"])
    assert eventually(lambda: lag_s(second) < 5)
    with RegistryClient([first.url, second.url]) as client:
        lags_s = [one.metrics.replication_lag_s for one in client.readiness() if one.metrics is not None]
    assert lags_s[0] is None
    assert lags_s[1] is not None and lags_s[1] < 60

    first_service.kill()
    assert eventually(lambda: lag_s(second) > 0.5), "the lag grows while the source is unreachable"
    capsys.readouterr()
    assert main(["registry", "promote", "--data-dir", str(tmp_path / "second")]) == 0
    assert re.search(rf"{first.url}.*\b[\d.]+ s\b", capsys.readouterr().out)
    assert second.registered("s4", fixed(4)) == 4
    assert eventually(lambda: replication.process.poll() is not None)
    assert replication.process.returncode == 0
    assert main(["registry", "promote", "--data-dir", str(tmp_path / "second")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_unreachable_source_is_reported_in_one_line(
    sqlite_template: SqliteTemplate,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "PAUSE_FIRST_S", 0.001)

    def error_line(*arguments: str) -> str:
        assert main(["registry", "replicate", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    directory = str(tmp_path)
    assert "http://127.0.0.1:9" in error_line("--data-dir", directory, "--registry-url", "http://127.0.0.1:9")
    with serve_registry(sqlite_template.copy_to(tmp_path / "other.db")) as other:
        assert other.url + "/no/such" in error_line("--data-dir", directory, "--registry-url", other.url + "/no/such")
    with pytest.raises(SystemExit):
        main(["registry", "replicate", "--pause", "0"])
    assert re.search(r"--pause.*\b3600\b.*'0'", capsys.readouterr().err)


@pytest.mark.servers
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_replicate_ends_on_signal(
    start_service: StartService, registry_url: str, tmp_path: Path, number: signal.Signals
) -> None:
    arguments = ("--data-dir", str(tmp_path), "--registry-url", registry_url)
    service = start_service("headrace", "registry", "replicate", *arguments)
    service.process.send_signal(number)
    assert service.process.wait(60) == 0
