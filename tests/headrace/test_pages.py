"""What README and docs/ show exists: commands that parse, settings that are known, links that lead somewhere."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli import _parser
from headrace.settings import load_settings
from support.checkout import ROOT
from support.pages import blocks, page

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"))
)

INSTALLS = sorted(
    {
        *(ROOT / path for path in PAGES),
        *(ROOT.glob("*.md")),
        *(path for path in ROOT.glob("examples/**/*") if path.is_file()),
        *ROOT.glob("headrace/cli/*.py"),
        ROOT / "Dockerfile",
        ROOT / "compose.yaml",
    }
)


def commands(text: str) -> Iterator[list[str]]:
    """The words after `headrace` of each command of a page: whole in a block, and in a sentence asking for its help,
    since there only what matters is said."""
    typed = "\n".join(blocks(text, "(?:sh|console)"))
    for line in re.findall(r"^(?:\$ |[A-Z_]+=\S* )*(?:\S*/)?headrace (.*)", typed, re.MULTILINE):
        words = shlex.split(line, comments=True)
        yield list(itertools.takewhile(lambda word: word not in ("|", ">", ">>", "&"), words))
    for named in re.findall(r"`headrace ([a-z]+[^`\n…]*)`", text):
        yield [*shlex.split(named), "--help"]


@pytest.mark.parametrize("path", PAGES)
def test_every_command_is_one(path: str) -> None:
    for words in commands(page(path)):
        try:
            _parser(words).parse_args(words)
        except SystemExit as ended:
            assert ended.code == 0, f"{path}: headrace {shlex.join(words)}"


@pytest.mark.parametrize("path", PAGES)
def test_every_setting_is_one(path: str, tmp_path: Path) -> None:
    for code in blocks(page(path), "toml"):
        file = tmp_path / "headrace.toml"
        file.write_text(code)
        load_settings(config=file)


@pytest.mark.parametrize("path", PAGES)
def test_every_link_leads_somewhere(path: str) -> None:
    for target, anchor in re.findall(r"\]\((?!http)([^)#\s]*)(#[^)\s]+)?\)", page(path)):
        found = (ROOT / path).parent / target if target else ROOT / path
        assert found.exists(), f"{path}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
            assert anchor[1:] in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def names_claimed_by_anybody(text: str) -> list[str]:
    """The arguments of each `pip install` that takes Headrace by its name from an index."""
    return [
        arguments
        for arguments in re.findall(r"\bpip3? install([^`\n]*)", text)
        if "--no-index" not in arguments and re.search(r"(?<=[\s'\"])headrace(\[[^]]*\])?(?![\w/.[-]| @ )", arguments)
    ]


@pytest.mark.parametrize("path", INSTALLS, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_takes_headrace_by_a_name_that_anybody_could_claim(path: Path) -> None:
    assert names_claimed_by_anybody(path.read_text(errors="replace")) == []


def test_what_counts_as_taking_it_by_its_name() -> None:
    taken = ("pip install headrace", "pip install -q 'headrace[all]'", "x: \"pip install 'headrace[{extra}]', or\"")
    assert [len(names_claimed_by_anybody(each)) for each in taken] == [1, 1, 1]
    for other in (
        "pip install '.[all]'",
        "pip install 'headrace[all] @ git+https://HOST/PATH/headrace@COMMIT'",
        "pip install /srv/headrace",
        "pip install ./headrace-0.1.0-py3-none-any.whl",
        "pip install headrace-0.1.0.whl",
        "pip install --no-index --find-links wheels 'headrace[all]'",
        "`pip install .` brings headrace",
    ):
        assert names_claimed_by_anybody(other) == [], other
