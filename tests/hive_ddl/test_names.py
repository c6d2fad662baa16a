"""Names of tables and directories, and quoting."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.hive_ddl.names import (
    TABLE_NAME_CHARS_MAX,
    directory_name,
    is_reserved_word,
    quote_identifier,
    quote_literal,
    table_name,
)

TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=249).filter(lambda topic: topic not in (".", ".."))


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("flights", "flights"),
        ("Shop.Page-Views", "shop_page_views"),
        ("order", "order"),
        ("_hidden", "_hidden"),
        ("headrace_probe_x", "topic_headrace_probe_x_453ef66f"),
    ],
)
def test_table_name(topic: str, expected: str) -> None:
    assert table_name(topic) == expected


def test_a_taken_name_gets_a_hash_of_the_topic() -> None:
    assert table_name("a.b", {"a_b"}) == "a_b_2e7336dc"
    assert table_name("a-b", {"a_b"}) == "a_b_d44362d6"


def test_a_taken_hash_gets_more_digits() -> None:
    first = table_name("a.b", {"a_b"})
    assert re.fullmatch(r"a_b_[0-9a-f]{16}", table_name("a.b", {"a_b", first}))


@given(TOPICS, st.sets(TOPICS.map(table_name), max_size=3))
def test_table_names_are_valid_short_and_free(topic: str, taken: set[str]) -> None:
    name = table_name(topic, taken)
    assert re.fullmatch(r"[a-z0-9_]+", name)
    assert len(name) <= TABLE_NAME_CHARS_MAX
    assert name not in taken


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("Shop.page-views_v2", "Shop.page-views_v2"),
        ("_hidden", "%5Fhidden"),
        ("__x_", "%5F_x%5F"),
        (".dot", "%2Edot"),
        ("a/b c%é", "a%2Fb%20c%25%C3%A9"),
    ],
)
def test_directory_name(topic: str, expected: str) -> None:
    assert directory_name(topic) == expected


@given(st.text(min_size=1, max_size=60).filter(lambda text: text not in (".", "..")))
def test_directory_names_are_visible_and_reversible(topic: str) -> None:
    directory = directory_name(topic)
    assert unquote(directory) == topic
    assert directory[0] not in "._"
    assert len(PurePosixPath(directory).parts) == 1


def test_reserved_words() -> None:
    assert is_reserved_word("Select")
    assert not is_reserved_word("carrier")


def test_quote_identifier() -> None:
    assert quote_identifier("order") == "`order`"
    assert quote_identifier("a`b") == "`a``b`"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("it's", r"'it\'s'"),
        (r"\u0001", r"'\\u0001'"),
        ("${env:HOME}", r"'\u0024{env:HOME}'"),
        ("$x {y}", "'$x {y}'"),
        ("a;b\nc", r"'a\u003Bb\nc'"),
    ],
)
def test_quote_literal(text: str, expected: str) -> None:
    assert quote_literal(text) == expected


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=80))
def test_literal_round_trip(text: str) -> None:
    literal = quote_literal(text)
    assert unescape(literal[1:-1]) == text
    assert "${" not in literal
    assert ";" not in literal
    assert "\n" not in literal


def unescape(body: str) -> str:
    """Returns the value of a quoted string in Hive and Spark, which read escapes from left to right."""
    named = {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}

    def meaning(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else named.get(match[2], match[2])

    assert not re.search(r"(?<!\\)(?:\\\\)*'", body), "an unescaped quote ends the string"
    return re.sub(r"\\(?:u([0-9A-Fa-f]{4})|(.))", meaning, body, flags=re.DOTALL)
