"""A replay moves messages from the quarantine to rows once, despite concurrent changes of the topic."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import fastavro
import pytest

from headrace.avro_codec.encode import encode_bytes, encode_long
from headrace.avro_schema.wire import VALUE_HEADER
from headrace.cli import main
from headrace.loader.build import current_build
from headrace.loader.commit.commit import Commit, CommitKind
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.inspect.containers import positions
from headrace.loader.inspect.locate import OffsetStatus, locate
from headrace.loader.inspect.published_files import published_files
from headrace.loader.inspect.quarantine import QuarantinedRow, committed_files, read_rows
from headrace.loader.inspect.verify import verify_topic
from headrace.loader.plan.schemas import WriterSchemas
from headrace.loader.project.quarantine import BadMessage, QuarantineCode
from headrace.loader.rewrite.replay import ReplayReport, ReplaySettings, replay
from headrace.loader.rewrite.replayed_rows import raw_headers
from headrace.loader.rewrite.run import RewritePorts
from headrace.loader.work_unit import FileKind
from support.loader.loader_fakes import ORDER_V1, ORDER_V2, FakeRegistry
from support.loader.loader_samples import POLICY as ANY_POLICY
from support.loader.loader_samples import value_subject
from support.loader.shelf import TIME_MS, Shelf

FIVE, SIX = "dt=2026-01-01/hr=05", "dt=2026-01-01/hr=06"
RECORDED = "dt=2026-01-01/hr=00"  # the time partition of the record times
POLICY = dataclasses.replace(ANY_POLICY, kafka_column="position", codec="deflate")
SETTINGS = ReplaySettings(POLICY, block_bytes=1_000, file_bytes_target=1_000_000)


def framed(schema_id: int) -> Callable[[int], bytes]:
    """A function that returns framed values; the body is the order's id, which is the offset."""
    return lambda offset: b"\x00" + schema_id.to_bytes(4, "big") + encode_long(offset)


@pytest.fixture
def registry() -> FakeRegistry:
    """A subject of orders with one version, schema 7. Schema 8 is not registered."""
    registry = FakeRegistry()
    registry.register("orders-value", 7, ORDER_V1)
    return registry


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """Offsets 0 to 9: 2 and 5 are quarantined because schema 8 is missing, and 7 because it is truncated."""
    shelf = Shelf(tmp_path)
    shelf.load({FIVE: [(0, 0), (0, 1)]}, (0, None, 0, 3), quarantined={FIVE: [(0, 2)]}, value_at=framed(8))
    shelf.load({SIX: [(0, n) for n in (3, 4)]}, (0, 3, 3, 6), quarantined={SIX: [(0, 5)]}, value_at=framed(8))
    cut = BadMessage(QuarantineCode.MALFORMED, "it is cut", 7)
    shelf.load(
        {SIX: [(0, n) for n in (6, 8, 9)]},
        (0, 6, 6, 10),
        quarantined={SIX: [(0, 7)]},
        value_at=lambda offset: b"\x00\x00\x00\x00\x07",
        bad=cut,
    )
    return shelf


def ports(shelf: Shelf, run: str = "replay") -> RewritePorts:
    index = FileIndex(shelf.log)
    numbers = iter(range(1, 100))
    return RewritePorts(
        log=shelf.log,
        staging=shelf.storage.staging,
        files=shelf.storage.files,
        index=index,
        engine=shelf.engine(index),
        run_merges=lambda units: [],
        now_ms=lambda: TIME_MS,
        new_run_id=lambda: f"{run}-{next(numbers)}",
        build=current_build(),
    )


def replayed(shelf: Shelf, registry: FakeRegistry, *codes: QuarantineCode, is_dry: bool = False) -> ReplayReport:
    schemas = WriterSchemas(registry, shelf.log.storage, value_subject)  # type: ignore[arg-type]
    chosen = {"codes": frozenset(codes)} if codes else {}
    return replay(ports(shelf), schemas, "orders", SETTINGS, **chosen, reason="ticket 4711", is_dry=is_dry)


def _names(shelf: Shelf, kind: FileKind) -> list[str]:
    state = shelf.log.read_state()
    index = FileIndex(shelf.log)
    return [one.path for one in published_files(index, shelf.log, "orders", kind, state.commit_number)]


def rows(shelf: Shelf) -> list[int]:
    """The offsets of all rows, with duplicates."""
    found: list[int] = []
    for name in _names(shelf, FileKind.DATA):
        with shelf.storage.files.open(name) as file:
            found += [offset for _, offset in positions(file) or ()]
    return sorted(found)


def quarantined(shelf: Shelf) -> list[QuarantinedRow]:
    found: list[QuarantinedRow] = []
    for one in committed_files(shelf.log, ["orders"]):
        with shelf.storage.files.open(one.name) as file:
            found += read_rows(file)
    return sorted(found, key=lambda row: row.offset)


def test_replay_loads_readable_messages_and_leaves_the_rest(shelf: Shelf, registry: FakeRegistry) -> None:
    registry.register("", 8, ORDER_V1)
    before = {row.offset: row for row in quarantined(shelf)}
    report = replayed(shelf, registry)
    assert (report.loaded, report.left, report.problems) == ({"schema_not_found": 2}, {"malformed": 1}, ())
    assert rows(shelf) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert [row.offset for row in quarantined(shelf)] == [7]
    assert quarantined(shelf)[0] == before[7]
    commit = shelf.log.commit(report.commit_number)
    assert (commit.kind, commit.topics["orders"].foreign_ids) == (CommitKind.REPLAY, {8})
    assert commit.reason == "ticket 4711"
    known = shelf.log.read_state().topics["orders"]
    assert (known.data.records, known.quarantine.records, known.quarantine.files) == (9, 1, 1)
    assert known.foreign_ids == {8}
    assert verify_topic(shelf.log, FileIndex(shelf.log), shelf.storage, "orders", checksums=True).findings == ()


def test_replay_reports_the_warnings_of_its_catch_up(shelf: Shelf, registry: FakeRegistry) -> None:
    expected = "orders: published files of a time partition are missing"
    world = ports(shelf)
    applied = world.engine.apply_pending
    warnings = iter([(expected,), ()])
    world.engine.apply_pending = lambda **options: dataclasses.replace(applied(**options), warnings=next(warnings))  # type: ignore[method-assign]
    schemas = WriterSchemas(registry, shelf.log.storage, value_subject)  # type: ignore[arg-type]
    assert replay(world, schemas, "orders", SETTINGS, is_dry=False).notes == (expected,)  # type: ignore[arg-type]


def test_only_files_with_loadable_messages_are_rewritten(shelf: Shelf, registry: FakeRegistry) -> None:
    names = {one.name for one in committed_files(shelf.log, ["orders"])}
    registry.register("", 8, ORDER_V1)
    replayed(shelf, registry)
    (left,) = committed_files(shelf.log, ["orders"])
    assert left.name.split("/")[-1] in {name.split("/")[-1] for name in names}


def test_a_file_with_loadable_and_bad_messages_is_split(shelf: Shelf, registry: FakeRegistry) -> None:
    values = {10: framed(8)(10), 11: b"\x00\x00\x00\x00\x09\x02", 12: framed(8)(12), 13: b"no frame"}
    shelf.load({}, (0, 10, 10, 14), quarantined={SIX: [(0, n) for n in values]}, value_at=values.__getitem__)
    registry.register("", 8, ORDER_V1)
    report = replayed(shelf, registry)
    assert (report.loaded, report.left) == ({"schema_not_found": 4}, {"schema_not_found": 2, "malformed": 1})
    assert [row.offset for row in quarantined(shelf)] == [7, 11, 13]
    reasons = {row.offset: row.code for row in quarantined(shelf)}
    assert reasons == {7: "malformed", 11: "schema_not_found", 13: "framing"}, "the present reasons"
    assert {row.offset: row.value for row in quarantined(shelf)}[13] == b"no frame"
    assert rows(shelf)[-2:] == [10, 12]
    assert verify_topic(shelf.log, FileIndex(shelf.log), shelf.storage, "orders", checksums=True).findings == ()


def test_replayed_rows_equal_rows_of_a_load(shelf: Shelf, registry: FakeRegistry) -> None:
    registry.register("", 8, ORDER_V1)
    replayed(shelf, registry)
    (name,) = (one for one in _names(shelf, FileKind.DATA) if RECORDED in one)
    with shelf.storage.files.open(name) as file:
        records = list(fastavro.reader(file))
    assert [record["id"] for record in records] == [2, 5]  # type: ignore[index,call-overload]
    where = records[1]["kafka"]  # type: ignore[index,call-overload]
    assert (where["partition"], where["offset"]) == (0, 5)
    assert where["timestamp"].timestamp() * 1000 == TIME_MS


def test_a_second_replay_finds_nothing(shelf: Shelf, registry: FakeRegistry) -> None:
    registry.register("", 8, ORDER_V1)
    replayed(shelf, registry)
    head = shelf.log.head()
    again = replayed(shelf, registry)
    assert (again.loaded, again.left, again.commit_number) == ({}, {"malformed": 1}, 0)
    assert shelf.log.head() == head


def test_a_dry_run_commits_nothing_and_has_the_same_report(shelf: Shelf, registry: FakeRegistry) -> None:
    registry.register("", 8, ORDER_V1)
    head, staged = shelf.log.head(), shelf.storage.staging.run_ids()
    dry = replayed(shelf, registry, is_dry=True)
    assert (dry.commit_number, shelf.log.head(), shelf.storage.staging.run_ids()) == (0, head, staged)
    done = replayed(shelf, registry)
    assert (dry.loaded, dry.left) == (done.loaded, done.left)


def test_replay_does_nothing_while_the_cause_remains(shelf: Shelf, registry: FakeRegistry) -> None:
    head = shelf.log.head()
    report = replayed(shelf, registry)
    assert (report.loaded, report.left) == ({}, {"schema_not_found": 2, "malformed": 1})
    assert shelf.log.head() == head


def test_replay_is_limited_to_the_given_reason(shelf: Shelf, registry: FakeRegistry) -> None:
    registry.register("", 8, ORDER_V1)
    report = replayed(shelf, registry, QuarantineCode.MALFORMED)
    assert (report.loaded, report.left) == ({}, {"schema_not_found": 2, "malformed": 1})


def test_an_unframed_value_is_never_replayed(shelf: Shelf, registry: FakeRegistry) -> None:
    """Raw bytes may begin like a framed message."""
    registry.register("", 8, ORDER_V1)
    unframed = BadMessage(QuarantineCode.FRAMING, "no magic byte")
    shelf.load({}, (0, 10, 10, 11), quarantined={SIX: [(0, 10)]}, value_at=framed(8), bad=unframed)
    report = replayed(shelf, registry)
    assert report.left == {"malformed": 1, "framing": 1}
    assert 10 not in rows(shelf)


def test_messages_quarantined_by_a_newer_release_are_unchanged(
    shelf: Shelf, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register("", 8, ORDER_V1)
    monkeypatch.setattr("headrace.loader.rewrite.replayed_rows.CODES", frozenset({"malformed"}))
    assert replayed(shelf, registry).left == {"schema_not_found": 2, "malformed": 1}


def test_one_of_two_concurrent_replays_is_committed(shelf: Shelf, registry: FakeRegistry) -> None:
    registry.register("", 8, ORDER_V1)
    late_ports = dataclasses.replace(ports(shelf, "late"))
    try_commit = shelf.log.try_commit

    def overtaken(commit: Commit) -> object:
        shelf.log.try_commit = try_commit  # type: ignore[method-assign]
        replayed(shelf, registry)
        return try_commit(commit)

    shelf.log.try_commit = overtaken  # type: ignore[method-assign,assign]
    schemas = WriterSchemas(registry, shelf.log.storage, value_subject)  # type: ignore[arg-type]
    report = replay(late_ports, schemas, "orders", SETTINGS, is_dry=False)
    assert report.loaded == {}
    assert report.left == {"schema_not_found": 2, "malformed": 1}
    assert "another command was faster" in report.problems[0]
    assert rows(shelf) == [0, 1, 2, 3, 4, 5, 6, 8, 9]


def test_a_concurrent_load_does_not_change_the_result(shelf: Shelf, registry: FakeRegistry) -> None:
    registry.register("", 8, ORDER_V1)
    try_commit = shelf.log.try_commit

    def overtaken(commit: Commit) -> object:
        shelf.log.try_commit = try_commit  # type: ignore[method-assign]
        shelf.load({SIX: [(0, 10)]}, (0, 10, 10, 12), quarantined={SIX: [(0, 11)]}, value_at=framed(9))
        return try_commit(commit)

    shelf.log.try_commit = overtaken  # type: ignore[method-assign,assign]
    assert replayed(shelf, registry).loaded == {"schema_not_found": 2}
    assert rows(shelf) == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10]
    assert [row.offset for row in quarantined(shelf)] == [7, 11]


@pytest.mark.parametrize("killed_at", ["write", "persist", "try_commit", "apply_pending"])
def test_a_replay_killed_at_any_call_is_completed_once(shelf: Shelf, registry: FakeRegistry, killed_at: str) -> None:
    registry.register("", 8, ORDER_V1)
    killed_ports = ports(shelf, "doomed")

    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> object:
        raise Killed

    if killed_at == "write":
        killed_ports = dataclasses.replace(killed_ports, staging=_overriding(killed_ports.staging, sink=die))
    elif killed_at == "persist":
        killed_ports = dataclasses.replace(
            killed_ports, staging=_overriding(killed_ports.staging, persist=die, drop=die)
        )
    elif killed_at == "try_commit":
        killed_ports = dataclasses.replace(killed_ports, log=_overriding(killed_ports.log, try_commit=die))
    else:
        engine = killed_ports.engine
        apply_calls = iter([engine.apply_pending, die])
        engine = _overriding(engine, apply_pending=lambda **_: next(apply_calls)())
        killed_ports = dataclasses.replace(killed_ports, engine=engine)
    with pytest.raises(Killed):
        schemas = WriterSchemas(registry, shelf.log.storage, value_subject)  # type: ignore[arg-type]
        replay(killed_ports, schemas, "orders", SETTINGS, is_dry=False)
    replayed(shelf, registry)
    assert rows(shelf) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert [row.offset for row in quarantined(shelf)] == [7]


class _Overriding:
    """An object with some methods replaced."""

    def __init__(self, inner: object, methods: dict[str, object]) -> None:
        self._inner, self._methods = inner, methods

    def __getattr__(self, name: str) -> object:
        return self._methods.get(name) or getattr(self._inner, name)


def _overriding(inner: object, **methods: object) -> object:
    return _Overriding(inner, methods)


def test_a_full_disk_leaves_no_staging(shelf: Shelf, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.register("", 8, ORDER_V1)
    staged = shelf.storage.staging.run_ids()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headrace.loader.storage.local.sink.LocalSink.append", full)
    with pytest.raises(OSError, match="No space left"):
        replayed(shelf, registry)
    assert shelf.storage.staging.run_ids() == staged


def test_a_version_that_no_load_has_folded_must_be_loaded_first(shelf: Shelf, registry: FakeRegistry) -> None:
    registry.register("orders-value", 8, ORDER_V2)
    report = replayed(shelf, registry)
    (problem,) = report.problems
    assert "`headrace load`" in problem


def test_a_registry_outage_is_a_problem_without_a_commit(shelf: Shelf, registry: FakeRegistry) -> None:
    registry.is_down = True
    staged = shelf.storage.staging.run_ids()
    assert len(replayed(shelf, registry).problems) == 1
    assert shelf.storage.staging.run_ids() == staged


@pytest.mark.parametrize("damage", ["removed", "changed"])
def test_files_that_differ_from_the_commit_are_not_replaced(shelf: Shelf, registry: FakeRegistry, damage: str) -> None:
    registry.register("", 8, ORDER_V1)
    path = shelf.warehouse / committed_files(shelf.log, ["orders"])[0].name
    content = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    (problem,) = replayed(shelf, registry).problems
    assert path.name in problem
    assert rows(shelf) == [0, 1, 3, 4, 6, 8, 9]


def test_replayed_messages_are_located_in_their_new_files(shelf: Shelf, registry: FakeRegistry) -> None:
    registry.register("", 8, ORDER_V1)
    replayed(shelf, registry)
    index = FileIndex(shelf.log)
    found = locate(shelf.log, index, shelf.storage.files, "orders", 0, 5)
    assert (found.status, found.commit_number) == (OffsetStatus.ROW, 2)
    assert RECORDED in found.files[0]
    assert locate(shelf.log, index, shelf.storage.files, "orders", 0, 7).status is OffsetStatus.QUARANTINED
    assert locate(shelf.log, index, shelf.storage.files, "orders", 0, 3).status is OffsetStatus.ROW


def test_a_widened_kafka_column_is_added_to_the_table(shelf: Shelf, registry: FakeRegistry) -> None:
    registry.register("", 8, ORDER_V1)
    schemas = WriterSchemas(registry, shelf.log.storage, value_subject)  # type: ignore[arg-type]
    full_column_settings = dataclasses.replace(SETTINGS, policy=dataclasses.replace(POLICY, kafka_column="full"))
    replay(ports(shelf), schemas, "orders", full_column_settings, is_dry=False)
    assert shelf.log.read_state().topics["orders"].kafka_column == "full"
    (name,) = (one for one in _names(shelf, FileKind.DATA) if RECORDED in one)
    with shelf.storage.files.open(name) as file:
        assert [record["kafka"]["key"] for record in fastavro.reader(file)] == [b"k", b"k"]  # type: ignore[index,call-overload]


def test_headers_are_restored_as_in_the_log() -> None:
    headers = ((VALUE_HEADER, b"\x00" * 17), ("empty", None), ("", b""))
    row = QuarantinedRow(0, 1, 2, "malformed", "r", 7, None, b"v", headers)
    expected = (
        b"\x06"
        + encode_bytes(VALUE_HEADER.encode())
        + encode_bytes(b"\x00" * 17)
        + encode_bytes(b"empty")
        + b"\x01\x00\x00"
    )
    assert raw_headers(row) == expected


@pytest.fixture
def opened_load(shelf: Shelf, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command with these dependencies instead of brokers, registry and metastore."""

    @contextmanager
    def open_load(settings: object, log: object, output: object, *, is_dry: bool = False) -> Iterator[object]:
        task = SimpleNamespace(block_bytes=1_000, file_bytes_target=1_000_000)
        schemas = WriterSchemas(registry, shelf.log.storage, value_subject, writable=not is_dry)  # type: ignore[arg-type]
        yield SimpleNamespace(
            rewrites=ports(shelf), ports=SimpleNamespace(schemas=schemas), settings=SimpleNamespace(task=task)
        )

    monkeypatch.setattr("headrace.pipeline.load.open_load", open_load)


@pytest.mark.usefixtures("opened_load")
def test_replay_command_prints_loaded_and_remaining_messages(
    shelf: Shelf, registry: FakeRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.register("", 8, ORDER_V1)

    def run(*arguments: str) -> int:
        return main(["quarantine", "replay", "orders", *arguments, "--data-dir", str(tmp_path)])

    assert run("--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.findall(r"\d+", lines[-1]) == ["2"]
    assert run("--format", "json", "--reason", "schema_not_found", "--because", "ticket 12") == 0
    assert shelf.log.commit(shelf.log.head()).reason == "ticket 12"
    expected = json.loads(capsys.readouterr().out)
    assert (expected["loaded"], expected["left"], expected["commit_number"]) == (
        {"schema_not_found": 2},
        {"malformed": 1},
        4,
    )
    registry.is_down = True
    assert run() == 1
    assert "PROBLEM: orders: " in capsys.readouterr().out
    assert run("--reason", "framing") == 2
    assert re.match(r"headrace: --reason: .*\bschema_not_found\b", capsys.readouterr().err)
