"""The count of phrases that make prose hard to read."""

from __future__ import annotations

from pathlib import Path

import pytest

import plain_words


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Returns a function from the name and text of a file to the hits by line."""
    monkeypatch.setattr(plain_words, "ROOT", tmp_path)

    def hits(name: str, text: str) -> dict[str, tuple[str, ...]]:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return {one.where.partition(":")[2]: one.hits for one in plain_words.passages(path) if one.hits}

    return hits


def test_docstrings_comments_and_messages_of_python_are_prose(found) -> None:  # type: ignore[no-untyped-def]
    text = (
        '"""What is gone is dropped."""\nkept = "kept"\n# nobody is told\n'
        'raise ValueError("the broker is asked once")\n'
    )
    assert found("a.py", text) == {
        "1": ("headless", "avoidance"),
        "3": ("talking", "everyman"),
        "4": ("talking",),
    }


def test_code_in_markdown_is_no_prose(found) -> None:  # type: ignore[no-untyped-def]
    assert found("a.md", "`kept`\n```\nnobody\n```\na folder, mended\n") == {"5": ("avoidance", "avoidance")}


def test_fragments_are_found_at_the_start_of_a_sentence(found) -> None:  # type: ignore[no-untyped-def]
    assert found("a.md", "Of one connection.\n\nThe size of one connection.\n") == {"1": ("orphan",)}


def test_first_line_of_a_c_comment_has_its_number(found) -> None:  # type: ignore[no-untyped-def]
    assert found("a.c", "int a;\n/* taken up\n   anew */\n") == {"2": ("avoidance",), "3": ("avoidance",)}
