"""Runs the hooks with pre-commit, which installs them from a repository with the files of the working tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.checkout import ROOT

pytestmark = pytest.mark.servers

pytest.importorskip("pre_commit", reason="needs pre-commit, part of the extra dev")

HEADER = '{"type": "record", "name": "Header", "fields": [{"name": "time", "type": "%s"}]}\n'
ORDER = (
    '{"type": "record", "name": "Order%s", "fields": [\n'
    '{"name": "id", "type": "%s"}, {"name": "h", "type": "Header"}]}\n'
)

Git = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns a repository with the files of this one, and the cache directory of pre-commit."""
    directory = tmp_path_factory.mktemp("hooks")
    tracked = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=False)
    if tracked.returncode:
        pytest.skip("needs a git checkout: pre-commit installs the files tracked by git")
    for name in os.fsdecode(tracked.stdout).split("\0"):
        if name and not name.startswith(("tests/", "docs/")) and (ROOT / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, directory / name)
    return directory, tmp_path_factory.mktemp("pre-commit")


@pytest.fixture
def git(hooks: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """Creates a repository whose commits run the hooks; it has no commit yet."""
    repository, cache = hooks
    for name in [name for name in os.environ if name.startswith(("GIT_", "PRE_COMMIT"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PRE_COMMIT_HOME", str(cache))
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@example.com")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)

    if not (repository / ".git").exists():
        for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "hooks"]):
            assert run("-C", str(repository), *command).returncode == 0
    revision = run("-C", str(repository), "rev-parse", "HEAD").stdout.strip()
    monkeypatch.chdir(tmp_path)
    assert run("init", "-q", "-b", "main").returncode == 0
    Path(".pre-commit-config.yaml").write_text(
        f"repos:\n- repo: {repository}\n  rev: {revision}\n  hooks: [{{id: avro-validate}}, {{id: avro-compat}}]\n"
    )
    subprocess.run([sys.executable, "-m", "pre_commit", "install"], check=True, capture_output=True)
    return run


@pytest.mark.timeout(300)
def test_hooks_check_staged_files_of_a_commit(git: Git) -> None:
    Path("types").mkdir()
    Path("types/header.avsc").write_text(HEADER % "long")
    Path("order.avsc").write_text(ORDER % ("", "long"))
    git("add", ".")
    first = git("commit", "-m", "first")
    assert first.returncode == 0, first.stderr

    git("mv", "order.avsc", "a b.avsc")
    Path("a b.avsc").write_text(ORDER % ("", "string"))
    git("add", ".")
    Path("a b.avsc").write_text(ORDER % ("", "long"))
    staged = git("commit", "-m", "staged content is checked")
    assert staged.returncode == 1
    assert 'a b.avsc:2:24: error: field "id" is string here but long in HEAD:order.avsc' in staged.stderr
    git("add", ".")
    Path("a b.avsc").write_text("{")
    Path("types/header.avsc").write_text("{")
    renamed = git("commit", "-m", "unstaged content is ignored")
    assert renamed.returncode == 0, renamed.stderr
    assert Path("a b.avsc").read_text() == "{"

    git("checkout", "-q", ".")
    Path("broken.avsc").write_text('{"type": }')
    git("add", ".")
    broken = git("commit", "-m", "broken")
    assert broken.returncode == 1
    assert "broken.avsc:1:10: error: expected a JSON value" in broken.stderr


@pytest.mark.timeout(300)
def test_files_split_over_processes_are_checked_as_one_set(git: Git) -> None:
    """pre-commit splits a long list of files over several processes."""
    directory = Path("a", *["a-directory-with-a-long-name-of-sixty-characters-as-they-go-in-java"] * 3)
    directory.mkdir(parents=True)
    for name, time_type in (("a/header.avsc", "long"), ("b/header.avsc", "string")):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(HEADER % time_type)
    for number in range(700):
        (directory / f"order{number}.avsc").write_text(ORDER % (number, "long"))
    git("add", ".")
    run = [sys.executable, "-m", "pre_commit", "run", "--verbose", "--all-files"]
    new = subprocess.run(run, capture_output=True, text=True, check=False)
    assert new.returncode == 0, new.stdout
    counts = [int(line.split()[0]) for line in new.stdout.splitlines() if line.endswith(" valid schemas")]
    assert len(counts) > 1
    assert sum(counts) == 702
    git("commit", "-q", "--no-verify", "-m", "first")

    Path("a/header.avsc").write_text(HEADER % "string")
    git("add", ".")
    changed = subprocess.run(run, capture_output=True, text=True, check=False)
    assert changed.returncode == 1
    errors = [
        line
        for line in changed.stdout.splitlines()
        if 'time" is string here but long in HEAD:a/' in line and line.endswith("cannot be read")
    ]
    assert len(errors) == 701
