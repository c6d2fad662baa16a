"""The files of commits, checkpoints and cursors: damage, and fields that only a newer or an older release knows."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from headrace.loader.apply.engine import Cursor
from headrace.loader.commit.commit import Commit, CommitKind, LoadSchema, StartOffset
from headrace.loader.commit.document import (
    CRITICAL,
    FORMAT,
    UnknownFields,
    has_stated_checksum,
    read_document,
    stated_sha256,
    write_document,
)
from headrace.loader.commit.json_values import canonical, from_json, to_json
from headrace.loader.commit.state import EMPTY, LoaderState, fold
from support.loader.loader_samples import (
    committed_file,
    committed_range,
    compact,
    load,
    load_schema,
    rewrite,
    topic_commit,
)

FIRST = load(
    "w1",
    {"orders": topic_commit(committed_range(0, None, 10, 15), files=[committed_file("3-0", 0, 10, 15)], new=True)},
)
"""A log as the first release wrote it: three commits, a checkpoint and a cursor."""


@dataclass(frozen=True, slots=True)
class Older:
    name: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Newer:
    name: str
    size: int = 0
    note: str = ""
    unit: str = field(default="bytes", metadata=CRITICAL)


@dataclass(frozen=True, slots=True)
class OlderPair:
    items: tuple[Older, ...]


@dataclass(frozen=True, slots=True)
class NewerPair:
    items: tuple[Newer, ...]


def test_values_survive_their_files() -> None:
    state = fold(EMPTY, FIRST.with_number(1), "ab")
    assert read_document(write_document(state), LoaderState).value == state
    found = read_document(write_document(FIRST), Commit)
    assert (found.value, found.format) == (FIRST, FORMAT)
    assert found.sha256 == stated_sha256(write_document(FIRST))


def test_an_unknown_field_is_skipped() -> None:
    content = write_document(NewerPair((Newer("a", 3, note="new"),)))
    assert read_document(content, OlderPair).value == OlderPair((Older("a", 3),))


def test_an_unknown_critical_field_is_an_error() -> None:
    content = write_document(NewerPair((Newer("a", 3), Newer("b", 4, unit="rows"))))
    with pytest.raises(UnknownFields, match=r"\bunit\b"):
        read_document(content, OlderPair)
    assert read_document(content, NewerPair).value.items[1].unit == "rows"


def test_a_missing_field_gets_its_default() -> None:
    content = write_document(OlderPair((Older("a"),)))
    assert read_document(content, NewerPair).value == NewerPair((Newer("a"),))
    with pytest.raises(ValueError, match=r"/items/0: .*\bname\b"):
        read_document(_document({"items": [{"size": 3}]}), NewerPair)


def _document(body: object) -> bytes:
    document = {"body": body, "format": FORMAT, "required_fields": []}
    return canonical({**document, "sha256": hashlib.sha256(canonical(document)).hexdigest()}) + b"\n"


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content.replace(b'"end":15', b'"end":16'),
        lambda content: content.replace(b'"required_fields":[]', b'"required_fields":["x"]'),
        lambda content: content.replace(b'"format":1', b'"format":2'),
        lambda content: b"[]",
        lambda content: b'{"body":1,"sha256":"00"}',
    ],
)
def test_damaged_document_is_refused(damage: Callable[[bytes], bytes]) -> None:
    content = write_document(FIRST)
    assert damage(content) != content
    with pytest.raises(ValueError):
        read_document(damage(content), Commit)


def test_every_flipped_bit_is_detected() -> None:
    content = write_document(load("w", {}))
    for position in range(len(content) - 1):
        for bit in range(8):
            changed = bytearray(content)
            changed[position] ^= 1 << bit
            with pytest.raises(ValueError):
                read_document(bytes(changed), Commit)


def test_a_value_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\bbuild\b"):
        read_document(write_document(load_schema()), Commit)
    with pytest.raises(ValueError, match=r"^/orders/x: "):
        from_json({"orders": {"x": 1}}, Mapping[str, Mapping[int, int]])  # type: ignore[type-abstract]
    with pytest.raises(TypeError, match=r"\bfloat\b"):
        to_json(1.5)
    assert read_document(write_document(load_schema()), LoadSchema).value == load_schema()


def test_the_stated_checksum_is_the_checked_checksum() -> None:
    content = write_document(FIRST)
    assert stated_sha256(content) == read_document(content, Commit).sha256 == json.loads(content)["sha256"]


def test_a_release_without_rewrites_refuses_a_rewrite() -> None:
    content = write_document(compact("w", {"orders": rewrite("0-1-w1-0-0")}))
    assert json.loads(content)["required_fields"] == ["rewrites"]
    assert json.loads(write_document(FIRST))["required_fields"] == []


def test_a_release_without_operator_commits_refuses_them() -> None:
    chosen = (StartOffset("orders", 0, 5),)
    commit = Commit(1, CommitKind.OFFSETS, "op", 1, "b", {}, frozenset(), reason="why", starts=chosen)
    assert json.loads(write_document(commit))["required_fields"] == ["reason"]
    assert read_document(write_document(commit), Commit).value == commit
    state = dataclasses.replace(EMPTY, starts={"orders": {0: 5}})
    assert json.loads(write_document(state))["required_fields"] == ["starts"]
    assert read_document(write_document(state), LoaderState).value == state
    for plain in (load("w1", {"orders": topic_commit(new=True)}), EMPTY):
        assert json.loads(write_document(plain))["required_fields"] == []


@pytest.mark.parametrize("position", [0, 10, 40, -70, -3])
def test_stated_checksum_is_compared_without_parsing(position: int) -> None:
    content = write_document(Cursor(7, {"ü": 3}, "abc"))
    assert has_stated_checksum(content)
    damaged = bytearray(content)
    damaged[position] ^= 1
    assert not has_stated_checksum(bytes(damaged))
    assert not has_stated_checksum(content[:position])
