"""The time until which a table states that it is complete."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.hive_ddl.errors import MetastoreUnavailable, StaleRevision, StatementRefused
from headrace.hive_ddl.executors.base import Executor
from headrace.hive_ddl.ops import SetProperties
from headrace.hive_ddl.table import COMPLETE_UNTIL, REVISION, TOPIC
from headrace.loader.apply import complete
from headrace.loader.apply.complete import (
    STEP_MS,
    TopicCompleteness,
    instant_text,
    next_completeness,
    read_completeness,
)
from headrace.loader.apply.quiet_tables import QuietTables
from headrace.loader.apply.tables_to_compare import TableShare
from headrace.loader.commit.state import FileTotals, PartitionState, TopicState
from headrace.loader.plan.discover import DiscoveredTopic, PartitionOffsets
from headrace.loader.report import RunReport
from headrace.loader.run import run_load
from support.loader.loader_fakes import ORDER_V1, World
from support.loader.loader_samples import load_schema

T0 = 1_767_225_600_000  # 2026-01-01T00:00Z
MINUTE_MS = 60_000


def state_of(*next_offsets: int, topic_id: str = "id-1") -> TopicState:
    partitions = {number: PartitionState(offset, 0, 1) for number, offset in enumerate(next_offsets)}
    totals = FileTotals()
    return TopicState(topic_id, "orders", "orders", "hour", load_schema(), partitions, frozenset(), totals, totals, 1)


def found(*ends: int, start: int = 0, error: str = "", topic_id: str = "id-1") -> DiscoveredTopic:
    partitions = tuple(PartitionOffsets(number, 0, start, end, end) for number, end in enumerate(ends))
    return DiscoveredTopic("orders", topic_id, partitions, {9: error} if error else {})


def test_a_topic_read_to_its_ends_is_complete_until_the_time_of_their_request() -> None:
    one = next_completeness(None, state_of(5, 7), found(5, 7), T0 + 59 * MINUTE_MS, is_applied=True)
    assert one == TopicCompleteness("id-1", until_ms=T0)
    assert next_completeness(one, state_of(5, 7), found(5, 7), T0 + STEP_MS, is_applied=True).until_ms == T0 + STEP_MS


def test_empty_partitions_do_not_delay_completeness() -> None:
    assert next_completeness(None, state_of(5), found(5, 0), T0, is_applied=True).until_ms == T0
    emptied = DiscoveredTopic("orders", "id-1", (PartitionOffsets(0, 0, 8, 8, 8),), {})
    assert next_completeness(None, state_of(), emptied, T0, is_applied=True).until_ms == T0


def test_ends_reached_by_several_loads_complete_the_topic_until_their_request() -> None:
    one = next_completeness(None, state_of(100), found(1_000), T0, is_applied=True)
    assert (one.until_ms, one.discovery_start_ms, one.ends) == (0, T0, {0: 1_000})
    two = next_completeness(one, state_of(900), found(1_800), T0 + STEP_MS, is_applied=True)
    assert two == one, "older ends are reached first"
    three = next_completeness(two, state_of(1_000), found(2_000), T0 + 2 * STEP_MS, is_applied=True)
    assert (three.until_ms, three.discovery_start_ms, three.ends) == (T0, T0 + 2 * STEP_MS, {0: 2_000})


def test_an_open_transaction_delays_completeness_until_it_ends() -> None:
    held = DiscoveredTopic("orders", "id-1", (PartitionOffsets(0, 0, 0, 8, 10),), {})
    one = next_completeness(None, state_of(8), held, T0, is_applied=True)
    assert one.until_ms == 0
    still = DiscoveredTopic("orders", "id-1", (PartitionOffsets(0, 0, 0, 12, 14),), {})
    assert next_completeness(one, state_of(12), still, T0 + STEP_MS, is_applied=True).until_ms == T0


def test_completeness_does_not_advance_without_offsets_of_all_partitions() -> None:
    for one in (found(5, error="no leader"), None, found(5, topic_id="id-2")):
        assert next_completeness(None, state_of(5), one, T0, is_applied=True) == TopicCompleteness("id-1")
    waiting = next_completeness(None, state_of(5), found(5), T0, is_applied=False)
    assert waiting.until_ms == 0
    assert next_completeness(waiting, state_of(5), None, T0 + STEP_MS, is_applied=True).until_ms == T0


def test_recreated_topic_drops_the_ends_of_its_predecessor() -> None:
    one = next_completeness(None, state_of(1), found(9), T0, is_applied=True)
    again = next_completeness(one, state_of(0, topic_id="id-2"), None, T0, is_applied=True)
    assert again == TopicCompleteness("id-2")


def test_completeness_decreases_only_if_the_clock_was_ahead() -> None:
    wrong = next_completeness(None, state_of(5), found(5), T0 + 10**11, is_applied=True)
    assert next_completeness(wrong, state_of(5), found(5), T0, is_applied=True).until_ms == T0
    right = next_completeness(None, state_of(5), found(5), T0, is_applied=True)
    assert next_completeness(right, state_of(5), found(9), T0 + MINUTE_MS, is_applied=True).until_ms == T0


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.booleans()), max_size=20))
def test_every_message_stored_before_complete_until_was_read(steps: list[tuple[int, int, bool]]) -> None:
    """Messages arrive and loads read some of them. All messages stored before `complete_until` must have been read."""
    known, end, read, ends_at = None, 0, 0, {0: 0}
    for number, (stored, loaded, is_applied) in enumerate(steps, start=1):
        now_ms = number * STEP_MS
        end += stored
        ends_at[now_ms] = end
        if is_applied:
            read = min(end, read + loaded)
        known = next_completeness(known, state_of(read), found(end), now_ms, is_applied=is_applied)
        assert ends_at[known.until_ms] <= read
        if read == end and is_applied:
            assert known.until_ms == now_ms


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.registry.register("orders-value", 1, ORDER_V1)
    world.topic("orders", [1] * 10)
    return world


def load(world: World) -> RunReport:
    return run_load(world.ports(), world.settings)


def written_value(world: World) -> str | None:
    return world.hive.tables["headrace", "orders"].properties.get(COMPLETE_UNTIL)


def test_complete_until_of_a_table_is_written_once_an_hour(world: World) -> None:
    load(world)
    assert written_value(world) == "2026-01-01T00:00:00Z"
    executed = len(world.hive.executed)
    world.clock_ms += 59 * MINUTE_MS
    load(world)
    assert len(world.hive.executed) == executed
    world.clock_ms += MINUTE_MS
    load(world)
    assert written_value(world) == "2026-01-01T01:00:00Z", "also without new messages"
    assert len(world.hive.executed) == executed + 1


def update_orders(world: World, partition_by: str, now_ms: int) -> None:
    """Updates the property of the table of orders, as a load at `now_ms` without new messages does."""
    ports = world.ports()
    state = ports.log.read_state()
    orders = dataclasses.replace(state.topics["orders"], partition_by=partition_by)
    state = dataclasses.replace(state, topics={"orders": orders})
    ports.complete_until.update(state, {"orders": found(10)}, now_ms, failed=frozenset(), run_id=f"run-{now_ms}")


def test_complete_until_of_a_table_of_days_advances_at_midnight(world: World) -> None:
    load(world)
    executed = len(world.hive.executed)
    for hour, written, changes in ((1, "2026-01-01", 0), (23, "2026-01-01", 0), (25, "2026-01-02", 1)):
        update_orders(world, "day", T0 + hour * STEP_MS)
        assert written_value(world) == f"{written}T00:00:00Z"
        assert len(world.hive.executed) == executed + changes
        assert read_completeness(world.log().storage).topics["orders"].until_ms == T0 + hour * STEP_MS
    update_orders(world, "hour", T0 + 25 * STEP_MS)
    assert written_value(world) == "2026-01-02T01:00:00Z", "the table was repartitioned by hour"
    update_orders(world, "day", T0 + 26 * STEP_MS)
    assert written_value(world) == "2026-01-02T01:00:00Z", "the value does not move back"


def test_tables_without_a_value_do_not_open_the_executor(world: World) -> None:
    world.is_session_open = True
    ports = world.ports()
    closed = dataclasses.replace(ports.complete_until, is_open=lambda: False)
    run_load(dataclasses.replace(ports, complete_until=closed), world.settings)
    assert written_value(world) is None
    load(world)
    assert written_value(world) == instant_text(T0)


def test_tables_without_a_value_come_after_the_others_and_get_less_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(world)
    for name in ("apples", "bananas", "cherries", "dates"):
        world.registry.register(f"{name}-value", 1, ORDER_V1)
        world.topic(name, [1])
    limit_to_two_tables(monkeypatch)
    monkeypatch.setattr(complete, "ALTER_S_MAX", 100.0)
    world.clock_ms = T0 + STEP_MS
    for expected in (["orders", "apples"], ["bananas", "cherries"]):
        executed = len(world.hive.executed)
        load(world)
        changed = [op.name for op in world.hive.executed[executed:] if isinstance(op, SetProperties)]
        assert changed == expected


def test_complete_until_and_schema_changes_do_not_overwrite_each_other(world: World) -> None:
    revisions = set()
    for hour in range(4):
        world.registry.texts[10 + hour] = ORDER_V1.replace('"id"', f'"id{hour}"').replace(
            '"long"', '["null","long"],"default":null', 1
        )
        world.registry.subjects["orders-value"].append(10 + hour)
        world.cluster.topics["orders"].logs[0] += [1]
        world.clock_ms = T0 + hour * STEP_MS
        assert load(world).problems == {}
        table = world.hive.tables["headrace", "orders"]
        assert table.properties[COMPLETE_UNTIL] == instant_text(world.clock_ms)
        assert f"id{hour}" in table.properties["avro.schema.literal"]
        revisions.add(table.properties[REVISION])
    changes = [op for op in world.hive.executed if isinstance(op, SetProperties)]
    assert len(revisions) == 4
    assert len({dict(op.properties)[REVISION] for op in changes}) == len(changes)


def test_a_table_with_the_known_revision_is_changed_without_reading_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(world)
    reads: list[str] = []
    read = world.hive.table
    monkeypatch.setattr(world.hive, "table", lambda database, name: reads.append(name) or read(database, name))
    world.clock_ms += STEP_MS
    load(world)
    assert written_value(world) == "2026-01-01T01:00:00Z"
    assert "orders" not in reads
    restored = dataclasses.replace(
        world.hive.tables["headrace", "orders"], properties={TOPIC: "orders", REVISION: "1-of-a-backup"}
    )
    world.hive.tables["headrace", "orders"] = restored
    world.clock_ms += STEP_MS
    load(world)
    assert written_value(world) == "2026-01-01T02:00:00Z"
    assert "orders" in reads


def test_completeness_does_not_advance_while_files_are_unpublished(world: World) -> None:
    load(world)
    world.hive.failure = MetastoreUnavailable("thrift://hive:9083", "refused")
    world.cluster.topics["orders"].logs[0] += [1]
    world.clock_ms += STEP_MS
    assert load(world).problems
    assert read_completeness(world.log().storage).topics["orders"].until_ms == T0
    world.hive.failure = None
    world.clock_ms += STEP_MS
    load(world)
    assert written_value(world) == instant_text(T0 + 2 * STEP_MS)


def test_an_unavailable_metastore_is_a_note_and_the_next_run_writes_complete_until(world: World) -> None:
    load(world)
    world.hive.failure = MetastoreUnavailable("thrift://hive:9083", "refused")
    world.clock_ms += STEP_MS
    report = load(world)
    assert not report.has_findings
    assert any(re.match(r"headrace\.complete_until .*\b1 ", note) for note in report.notes)
    world.hive.failure = None
    assert load(world).notes == ()
    assert written_value(world) == instant_text(T0 + STEP_MS)


def test_a_refused_table_change_does_not_stop_other_tables(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("apples", "zebras"):
        world.registry.register(f"{name}-value", 1, ORDER_V1)
        world.topic(name, [1])
    load(world)
    world.clock_ms += STEP_MS
    execute = world.hive.execute

    def refused_once(op: object) -> None:
        if isinstance(op, SetProperties) and op.name == "apples":
            raise StatementRefused("the table headrace.apples", "no room")
        execute(op)

    with monkeypatch.context() as refusing:
        refusing.setattr(world.hive, "execute", refused_once)
        (note,) = load(world).notes
    assert re.match(
        r"headrace\.complete_until .*\b1 .*\bapples: .*\bheadrace\.apples: no room; the next load tries again$", note
    )
    written = {name: world.hive.tables["headrace", name].properties[COMPLETE_UNTIL] for name in ("apples", "zebras")}
    assert written == {"apples": instant_text(T0), "zebras": instant_text(T0 + STEP_MS)}
    assert load(world).notes == ()
    assert world.hive.tables["headrace", "apples"].properties[COMPLETE_UNTIL] == instant_text(T0 + STEP_MS)


def test_an_invalid_table_property_does_not_stop_other_tables(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("apples", "zebras"):
        world.registry.register(f"{name}-value", 1, ORDER_V1)
        world.topic(name, [1])
    load(world)
    key = ("headrace", "apples")
    table = world.hive.tables[key]
    world.hive.tables[key] = dataclasses.replace(table, properties={**table.properties, REVISION: "9" * 5_000})
    world.clock_ms += STEP_MS
    with monkeypatch.context() as no_comparison:
        no_comparison.setattr(QuietTables, "share", lambda *_: TableShare())
        (note,) = load(world).notes
    assert re.match(r"headrace\.complete_until .*\b1 .*\bapples: ", note)
    assert world.hive.tables["headrace", "zebras"].properties[COMPLETE_UNTIL] == instant_text(T0 + STEP_MS)


def test_a_lost_hint_is_rebuilt_from_tables_and_only_future_values_decrease(world: World) -> None:
    load(world)
    world.clock_ms += STEP_MS
    load(world)
    for content in (None, b"{", b'{"topics":{"orders":{}}}'):
        world.log().storage.remove("complete.json")
        if content is not None:
            world.log().storage.replace("complete.json", content)
        executed = len(world.hive.executed)
        load(world)
        assert written_value(world) == instant_text(T0 + STEP_MS)
        assert len(world.hive.executed) == executed, "the table already has this value"
    world.log().storage.remove("complete.json")
    world.clock_ms = T0 + MINUTE_MS
    load(world)
    assert written_value(world) == instant_text(T0), "a value in the future is wrong"


def test_a_table_changed_by_a_later_load_is_not_overwritten(world: World) -> None:
    load(world)
    key = ("headrace", "orders")
    table = world.hive.tables[key]
    for revision in ("1-other", "2-other", "99-of a lost log"):
        world.hive.tables[key] = dataclasses.replace(table, properties={**table.properties, REVISION: revision})
        ports = world.ports()
        late = dataclasses.replace(ports.complete_until, head=lambda: 2)
        until = {"orders": found(10)}
        late.update(ports.log.read_state(), until, T0 + STEP_MS, failed=frozenset(), run_id=f"w{revision}")
        assert (written_value(world) == instant_text(T0 + STEP_MS)) is (revision != "2-other")
        world.log().storage.remove("complete.json")


def test_a_later_run_writes_complete_until_after_a_failed_table_change(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is missing, foreign, written by a later load, or changed concurrently."""
    load(world)
    monkeypatch.setattr(QuietTables, "share", lambda *_: TableShare())  # it would restore the table
    key = ("headrace", "orders")
    table = world.hive.tables[key]
    world.clock_ms += STEP_MS

    def refused(op: object) -> None:
        raise StaleRevision("headrace", "orders", "a", "b")

    del world.hive.tables[key]
    executed = len(world.hive.executed)
    load(world)
    other = {**table.properties, TOPIC: "another", REVISION: "1-another"}
    world.hive.tables[key] = dataclasses.replace(table, properties=other)
    load(world)
    world.hive.tables[key] = dataclasses.replace(table, properties={**table.properties, REVISION: "2-other"})
    ports = world.ports()
    ports = dataclasses.replace(ports, complete_until=dataclasses.replace(ports.complete_until, head=lambda: 2))
    run_load(ports, world.settings)
    world.hive.tables[key] = table
    with monkeypatch.context() as stale:
        stale.setattr(world.hive, "execute", refused)
        assert load(world).notes == ()
    assert len(world.hive.executed) == executed
    assert written_value(world) == instant_text(T0)
    load(world)
    assert written_value(world) == instant_text(T0 + STEP_MS)


def limit_to_two_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes each run end after two tables: its clock advances by one second with each call."""
    monkeypatch.setattr(complete, "ALTER_S_MAX", 1.5)
    monkeypatch.setattr(complete, "FIRST_VALUE_S_MAX", 1.5)
    init = complete.CompleteUntil.__init__

    def with_clock(self: complete.CompleteUntil, *arguments: object) -> None:
        init(self, *arguments, monotonic_s=itertools.count().__next__)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(complete.CompleteUntil, "__init__", with_clock)


def test_complete_until_of_many_tables_is_written_over_several_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_to_two_tables(monkeypatch)
    for number in range(4):
        world.registry.register(f"t{number}-value", 1, ORDER_V1)
        world.topic(f"t{number}", [1])
    for expected in (2, 4, 5):
        load(world)
        tables = world.hive.tables.values()
        assert sum(COMPLETE_UNTIL in table.properties for table in tables) == expected


def test_the_start_of_spark_does_not_use_up_the_limit_per_run(world: World) -> None:
    world.registry.register("clicks-value", 1, ORDER_V1)
    world.topic("clicks", [1])
    load(world)
    world.clock_ms += STEP_MS
    clock_s = [0.0]

    def executor() -> Executor:
        clock_s[0] = 60.0
        return world.hive

    ports = world.ports()
    slow = dataclasses.replace(ports.complete_until, executor=executor, monotonic_s=lambda: clock_s[0])
    run_load(dataclasses.replace(ports, complete_until=slow), world.settings)
    for name in ("clicks", "orders"):
        table = world.hive.tables["headrace", name]
        assert table.properties[COMPLETE_UNTIL] == instant_text(world.clock_ms)


def test_refused_table_changes_do_not_use_up_the_limit_per_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_to_two_tables(monkeypatch)
    for name in ("apples", "bananas", "cherries", "dates"):
        world.registry.register(f"{name}-value", 1, ORDER_V1)
        world.topic(name, [1])
    for _ in range(3):
        load(world)
    execute = world.hive.execute

    def refused(op: object) -> None:
        if isinstance(op, SetProperties) and op.name in ("apples", "bananas"):
            raise StatementRefused(f"the table headrace.{op.name}", "no room")
        execute(op)

    monkeypatch.setattr(world.hive, "execute", refused)
    for hour in (1, 2):
        world.clock_ms += STEP_MS
        for _ in range(3):
            load(world)
        written = {
            name: table.properties[COMPLETE_UNTIL]
            for (database, name), table in world.hive.tables.items()
            if database == "headrace"
        }
        then, now = instant_text(T0), instant_text(T0 + hour * STEP_MS)
        assert written == {"apples": then, "bananas": then, "cherries": now, "dates": now, "orders": now}


def test_tables_with_the_current_value_cause_no_metastore_request(world: World) -> None:
    load(world)

    def opened() -> Executor:
        raise AssertionError("unexpected metastore request")

    ports = world.ports()
    until = dataclasses.replace(ports.complete_until, executor=opened)
    same = {"orders": found(10)}
    state = ports.log.read_state()
    assert until.update(state, same, T0 + MINUTE_MS, failed=frozenset(), run_id="w") == ()
    (warning,) = until.update(state, same, T0 + STEP_MS, failed=frozenset(), run_id="w")
    assert "unexpected metastore request" in warning
