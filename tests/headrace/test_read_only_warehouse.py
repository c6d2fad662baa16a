"""Commands that only read work on a read-only warehouse."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NoReturn

import pytest

from headrace.cli import main
from headrace.loader.run import run_load
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from support.loader.loader_fakes import ORDER_V1, World

NO_BROKER = "127.0.0.1:1"


@pytest.mark.parametrize(
    "words",
    [
        ["files", "orders"],
        ["locate", "orders", "0", "3"],
        ["load", "status", "--bootstrap-servers", NO_BROKER],
        ["offsets", "show", "orders", "--bootstrap-servers", NO_BROKER],
        ["quarantine", "list"],
        ["hive", "explain", "orders"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_commands_work_without_write_access(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path)
    world.registry.register("orders-value", 1, ORDER_V1)
    world.topic("orders", [1] * 5)
    run_load(world.ports(), world.settings)

    def refuse(*_arguments: object, **_more: object) -> NoReturn:
        raise OSError(errno.EROFS, "Name node is in safe mode")

    for name in ("prepare", "put_if_absent", "persist", "replace", "remove"):
        monkeypatch.setattr(LocalCommitStorage, name, refuse)
    code = main([*words, "--warehouse", str(world.warehouse), "--data-dir", str(tmp_path / "data")])
    output = capsys.readouterr()
    assert code in (0, 1), output.err
    assert "orders" in output.out or words[0] == "quarantine"
