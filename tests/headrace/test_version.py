"""The git commit that the installation names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.version import VERSION, checkout_commit
from support.checkout import ROOT

HAS_GIT = (ROOT / ".git").exists()


def test_version_names_the_commit_of_the_checkout(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    commit = r" \(commit [0-9a-f]{40}(-dirty)?\)" if HAS_GIT else ""
    assert re.fullmatch(rf"headrace {re.escape(VERSION)}{commit}\n", capsys.readouterr().out)


def test_commit_is_unknown_outside_a_checkout_and_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    assert checkout_commit(tmp_path) == "", "it has no commit"
    (tmp_path / "inside").mkdir()
    assert checkout_commit(tmp_path / "inside") == "", "the commit of the parent directory is another project's"
    monkeypatch.setenv("PATH", str(tmp_path / "inside"))
    assert checkout_commit(ROOT) == ""


def test_changelog_has_the_version() -> None:
    assert f"\n## {VERSION}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
