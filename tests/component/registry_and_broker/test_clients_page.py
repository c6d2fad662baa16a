"""The code of docs/clients.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.pages import blocks, page

pytestmark = pytest.mark.servers


def test_code_of_clients_page_runs(
    tmp_path: Path,
    registry_url: str,
    broker_address: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE__REGISTRY__URL", registry_url)
    monkeypatch.setenv("HEADRACE__KAFKA__BOOTSTRAP_SERVERS", broker_address)
    names = {"__name__": "__main__"}
    for block in blocks(page("docs/clients.md"), "python"):
        exec(compile(block, "docs/clients.md", "exec"), names)
    assert re.search(r"partition=\d+, offset=0, .*\n\d 0 lamp\nmail about 1\n", capsys.readouterr().out)
