"""Bytes of a file become chunks: every byte belongs to one record, for all sizes of reads."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.push.contents import GzipContent, PlainContent, anchor_of, line_start_before
from headrace.push.cutting import (
    FRAMED,
    ContentReplaced,
    Cut,
    PushChunk,
    TailCursor,
    compile_start,
    next_rest,
    next_step,
    record_of,
)
from support.session_gateway import parse_chunk


@pytest.fixture
def content_of(tmp_path: Path) -> Iterator[Callable[[bytes], PlainContent]]:
    with (tmp_path / "file").open("w+b", buffering=0) as file:

        def make(data: bytes) -> PlainContent:
            file.truncate(0)
            file.seek(0)
            file.write(data)
            return PlainContent(file.fileno())

        yield make


def chunks_of(content: PlainContent | GzipContent, cut: Cut, start: int = 0, rest: bool = False) -> list[PushChunk]:
    """Reads a content to its end, as the tailer does; from `start` as after a restart."""
    line_start = line_start_before(content, start)
    cursor = TailCursor(start, anchor_of(content, start), None if line_start == start else line_start)
    chunks = []
    while True:
        step = next_step(content, cursor, cut, at_end=True)
        if step.chunk is None and rest:
            step = next_rest(content, cursor, cut)
        if step.chunk is None:
            return chunks
        assert step.chunk.begin == cursor.position
        assert step.chunk.anchor == anchor_of(content, step.chunk.end)
        chunks.append(step.chunk)
        cursor = TailCursor(step.chunk.end, step.chunk.anchor, step.chunk.line_start)


def records_of(chunks: list[PushChunk]) -> list[tuple[int, bytes, str]]:
    return [
        record
        for chunk in chunks
        if not chunk.is_empty
        for record in parse_chunk(chunk.content_type, {"begin": [str(chunk.begin)]}, bytes(chunk.body))
    ]


def test_text_chunk_has_the_bytes_of_whole_lines(content_of: Callable[[bytes], PlainContent]) -> None:
    chunks = chunks_of(content_of(b"a\r\n\n\xff\xfe\nhalf"), Cut(64, 64))
    assert [chunk.body for chunk in chunks] == [b"a\r\n\n\xff\xfe\n"]
    assert records_of(chunks) == [(3, b"a\r", ""), (4, b"", ""), (7, b"\xff\xfe", "")]


def test_long_line_is_cut_into_numbered_parts(content_of: Callable[[bytes], PlainContent]) -> None:
    content = content_of(b"a\n" + b"x" * 70 + b"\nb\n")
    assert records_of(chunks_of(content, Cut(16, 32))) == [
        (2, b"a", ""),
        (34, b"x" * 32, "1/3"),
        (66, b"x" * 32, "2/3"),
        (73, b"x" * 6, "3/3"),
        (75, b"b", ""),
    ]


@pytest.mark.parametrize("start", [34, 66])
def test_parts_go_on_after_a_restart_within_a_line(content_of: Callable[[bytes], PlainContent], start: int) -> None:
    content = content_of(b"a\n" + b"x" * 70 + b"\nb\n")
    everything = records_of(chunks_of(content, Cut(16, 32)))
    assert records_of(chunks_of(content, Cut(16, 32), start)) == [record for record in everything if record[0] > start]


def test_line_of_the_maximum_is_whole(content_of: Callable[[bytes], PlainContent]) -> None:
    assert records_of(chunks_of(content_of(b"x" * 32 + b"\n"), Cut(16, 32))) == [(33, b"x" * 32, "")]


def test_growing_line_is_not_searched_again(content_of: Callable[[bytes], PlainContent]) -> None:
    step = next_step(content_of(b"x" * 100), TailCursor(), Cut(16, 1000), at_end=False)
    assert step.chunk is None
    assert step.scanned_to == 100


def test_nul_bytes_before_a_line_are_skipped_and_counted(content_of: Callable[[bytes], PlainContent]) -> None:
    content = content_of(b"\0" * 50 + b"a\n\0\0b\n\0c\0d\n")
    chunks = chunks_of(content, Cut(16, 64))
    assert records_of(chunks) == [(52, b"a", ""), (56, b"b", ""), (61, b"c\0d", "")]
    assert next_step(content, TailCursor(), Cut(16, 64), at_end=True).nul_bytes == 50


def test_line_of_nul_bytes_alone_is_an_empty_line(content_of: Callable[[bytes], PlainContent]) -> None:
    assert records_of(chunks_of(content_of(b"\0\0\0\na\n"), Cut(16, 64))) == [(4, b"", ""), (6, b"a", "")]


def test_rest_without_line_end_is_sent_once(content_of: Callable[[bytes], PlainContent]) -> None:
    chunks = chunks_of(content_of(b"a\nrest"), Cut(16, 64), rest=True)
    assert records_of(chunks) == [(2, b"a", ""), (6, b"rest", "")]
    assert records_of(chunks_of(content_of(b"a\nrest\nb\n"), Cut(16, 64), start=6)) == [(9, b"b", "")]


STACK = b"ERROR a\n  at x\n  at y\nINFO b\nERROR c\n  at z\n"


def test_lines_up_to_the_next_start_are_one_record(content_of: Callable[[bytes], PlainContent]) -> None:
    cut = Cut(64, 64, start=compile_start("[A-Z]"))
    chunks = chunks_of(content_of(STACK), cut)
    assert [chunk.content_type for chunk in chunks] == [FRAMED]
    assert records_of(chunks) == [
        (22, b"ERROR a\n  at x\n  at y", ""),
        (29, b"INFO b", ""),
        (44, b"ERROR c\n  at z", ""),
    ]


def test_last_record_of_several_lines_waits_until_the_file_rests(content_of: Callable[[bytes], PlainContent]) -> None:
    step = next_step(content_of(STACK), TailCursor(), Cut(64, 64, start=compile_start("[A-Z]")), at_end=False)
    assert step.chunk is not None
    assert step.chunk.end == 29


def test_record_of_several_lines_is_bounded(content_of: Callable[[bytes], PlainContent]) -> None:
    chunks = chunks_of(content_of(b"A\n" + b" x\n" * 40), Cut(16, 32, start=compile_start("[A-Z]")))
    assert sum(value.count(b"x") for _, value, _ in records_of(chunks)) == 40
    assert max(len(value) for _, value, _ in records_of(chunks)) <= 32


def test_json_lines_become_values_and_others_are_rejected(content_of: Callable[[bytes], PlainContent]) -> None:
    data = b'{"a": 1}\n\n [1, 2] \r\nnot json\n\xff\nNaN\n"' + b"x" * 100 + b'"\n{"b": "\xc3\xa9"}\n'
    chunks = chunks_of(content_of(data), Cut(64, 64, is_json=True))
    values = [(seqno, json.loads(value)) for seqno, value, _ in records_of(chunks)]
    assert values == [(9, {"a": 1}), (20, [1, 2]), (len(data), {"b": "é"})]
    rejects = [reject for chunk in chunks for reject in chunk.rejects]
    assert [reject.value[:8] for reject in rejects] == [b"not json", b"\xff", b"NaN", b'"' + b"x" * 7, b"x" * 8]


@pytest.mark.parametrize("options", [{"is_json": True}, {"start": compile_start("1")}])
def test_records_of_a_chunk_are_bounded(content_of: Callable[[bytes], PlainContent], options: dict[str, Any]) -> None:
    chunks = chunks_of(content_of(b"1\n" * 25_000), Cut(1 << 20, 1 << 20, **options))
    assert [len(records_of([chunk])) for chunk in chunks] == [10_000, 10_000, 5_000]


def test_json_value_longer_than_a_chunk_is_one_record(content_of: Callable[[bytes], PlainContent]) -> None:
    data = b'"' + b"x" * 60 + b'"\n"' + b"y" * 60 + b'"'
    chunks = chunks_of(content_of(data), Cut(16, 80, is_json=True), rest=True)
    assert [(seqno, len(value)) for seqno, value, _ in records_of(chunks)] == [(63, 62), (125, 62)]


@pytest.mark.parametrize("cut", [Cut(64, 64), Cut(64, 64, is_json=True), Cut(64, 64, start=compile_start("[0-9]"))])
def test_record_of_a_chunk_is_found_by_its_seqno(content_of: Callable[[bytes], PlainContent], cut: Cut) -> None:
    (chunk,) = chunks_of(content_of(b"1\n22\n333\n"), cut)
    assert [record_of(chunk, seqno) for seqno in (2, 5, 9)] == [b"1", b"22", b"333"]
    assert record_of(chunk, 99) is None


def test_replaced_content_is_noticed(content_of: Callable[[bytes], PlainContent]) -> None:
    cursor = TailCursor(2, anchor_of(content_of(b"a\nb\n"), 2))
    with pytest.raises(ContentReplaced):
        next_step(content_of(b"x\nb\n"), cursor, Cut(16, 64), at_end=False)
    with pytest.raises(ContentReplaced):
        next_step(content_of(b"x"), cursor, Cut(16, 64), at_end=False)


PIECES = st.lists(
    st.one_of(st.just(b"\n"), st.binary(max_size=8).map(lambda data: data.replace(b"\0", b"")), st.just(b"x" * 45)),
    max_size=30,
)


@given(
    pieces=PIECES,
    sizes=st.tuples(st.integers(16, 40), st.integers(0, 40)),
    starts=st.sampled_from([None, "[a-f]"]),
    data=st.data(),
)
def test_every_line_is_in_one_record_after_any_restart(
    pieces: list[bytes], sizes: tuple[int, int], starts: str | None, data: st.DataObject
) -> None:
    whole = b"".join(pieces)
    cut = Cut(sizes[0], sizes[0] + sizes[1], start=compile_start(starts))
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(whole)
        content = PlainContent(file.fileno())
        first = records_of(chunks_of(content, cut))
        assert joined(first) == b"".join(line + b"\n" for line in whole.split(b"\n")[:-1])
        if first:
            at = data.draw(st.integers(0, len(first) - 1))
            again = records_of(chunks_of(content, cut, first[at][0]))
            assert joined(first[: at + 1] + again) == joined(first)


def joined(records: list[tuple[int, bytes, str]]) -> bytes:
    """The lines of records; parts of a line joined."""
    text = b""
    for _, value, part in records:
        number, _, count = part.partition("/")
        text += value + (b"" if number != count else b"\n")
    return text
