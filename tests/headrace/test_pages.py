"""What README and docs/ show exists: commands that parse, settings that are known, links that lead somewhere."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkout import ROOT
from headrace.cli import _parser
from headrace.settings import load_settings
from pages import blocks, page

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"))
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
