"""The terms of docs/glossary.md are used, and the words that it replaces are not."""

from __future__ import annotations

import re

from headrace.cli.manual import reference_page
from support.checkout import ROOT
from support.pages import page

GLOSSARY = page("docs/glossary.md")
ROWS = [line.strip("| ").split(" | ") for line in GLOSSARY.splitlines() if line.startswith("| **")]
PROSE = {
    **{
        str(path.relative_to(ROOT)): re.sub(
            r"^ *```.*?^ *```|`[^`\n]*`", "", page(path), flags=re.DOTALL | re.MULTILINE
        )
        for path in (
            ROOT / "README.md",
            *ROOT.glob("docs/**/*.md"),
            *ROOT.glob("examples/**/*.md"),
        )
        if path.name != "glossary.md" and path.parent.name != "decisions"
    },
    "help texts": reference_page(),
}


def replaced_words() -> set[str]:
    """Returns the words of the column "not"."""
    section = GLOSSARY.partition("| term | meaning | not |")[2].partition("\n## ")[0]
    cells = [line.split("|")[-2].strip() for line in section.splitlines() if line.startswith("| **")]
    return {word for cell in cells if cell for word in cell.split(", ")}


def test_pages_and_help_texts_do_not_use_replaced_words() -> None:
    words = replaced_words()
    assert {"folder", "gone", "answer"} <= words
    pattern = re.compile(rf"\b(?:{'|'.join(sorted(words))})(?:s|ed|ing)?\b", re.IGNORECASE)
    found = {
        name: [text[max(0, hit.start() - 40) : hit.end() + 40] for hit in pattern.finditer(text)]
        for name, text in PROSE.items()
    }
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_every_term_is_used() -> None:
    sources = [
        path.read_text(encoding="utf-8") for path in ROOT.glob("*/**/*.py") if path.parts[len(ROOT.parts)][0] != "."
    ]
    text = re.sub(r"[\s_]+", " ", " ".join([*PROSE.values(), *sources])).lower()
    terms = {term.strip("`").lower() for row in ROWS for term in re.findall(r"\*\*(.+?)\*\*", row[0])}
    assert len(terms) > 60
    assert {term for term in terms if term not in text} == set()
