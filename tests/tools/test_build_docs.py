"""The site of the documentation: pages and API, without MkDocs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import build_docs
import headrace
from headrace import _NAMES_BY_MODULE


def test_every_public_name_is_on_one_api_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_docs, "SOURCE", tmp_path)
    build_docs.write_api_pages(_NAMES_BY_MODULE)
    lines = [line for page in (tmp_path / "api").glob("*.md") for line in page.read_text().splitlines()]
    found = [line.rpartition(".")[2] for line in lines if line.startswith("::: ")]
    assert sorted(found) == sorted(headrace.__all__)


def test_every_page_is_in_the_navigation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_docs, "SOURCE", tmp_path)
    build_docs.copy_pages()
    named = yaml.safe_dump(yaml.safe_load(build_docs.configured_text())["nav"])
    missing = [
        path
        for path in (page.relative_to(tmp_path).as_posix() for page in (tmp_path / "docs").rglob("*.md"))
        if f" {path}\n" not in named
    ]
    assert missing == []
