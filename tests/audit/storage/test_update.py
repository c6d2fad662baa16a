"""Stored verdicts equal those of all rows, after any arrivals, updates, decisions and times."""

from __future__ import annotations

import dataclasses
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.engine import Engine

from headrace.audit.errors import StoreUnavailable
from headrace.audit.event import EVENT_VERDICTS
from headrace.audit.reconcile import reconcile_topic, reconcile_topics
from headrace.audit.row import AuditOutcome, AuditRow, Tier
from headrace.audit.storage import update
from headrace.audit.storage.store import AuditStore
from headrace.audit.storage.tables import METADATA, STORE_STATE
from headrace.audit.strip import EMPTY_STRIP, STATE_BYTES, STATE_VERDICTS, day_of, place_of
from headrace.audit.verdict import Acceptance, AuditVerdict, FindingPolicy, Hop, Period
from headrace.audit.window import OUT_OF_RANGE_MS, SCATTERED_MS, TIME_MS_MAX, WINDOW_MS, window_start
from support.audit_rows import audit_row, three_tiers
from support.examples import examples

NewAddress = Callable[[], Path | str]
GRACE_MS = 2 * WINDOW_MS
TTL_MS = 6 * WINDOW_MS
TOPICS = ("a", "b")
STARTS = (0, WINDOW_MS, 2 * WINDOW_MS, 5 * WINDOW_MS, OUT_OF_RANGE_MS, SCATTERED_MS)
SOURCES = (
    (Tier.PRODUCER, AuditOutcome.ACKNOWLEDGED),
    (Tier.BROKER, AuditOutcome.STORED),
    (Tier.LOADER, AuditOutcome.WRITTEN),
    (Tier.LOADER, AuditOutcome.QUARANTINED),
    (Tier.LOADER, AuditOutcome.SKIPPED),
    (Tier.CONSUMER, AuditOutcome.CONSUMED),
)


def policy_of(counting: Iterable[str], accepted: Sequence[Acceptance] = ()) -> FindingPolicy:
    topics = frozenset(counting)
    return FindingPolicy(lambda topic: topic in topics, tuple(accepted), TTL_MS)


@st.composite
def rows(draw: st.DrawFn) -> AuditRow:
    tier, outcome = draw(st.sampled_from(SOURCES))
    count = draw(st.integers(0, 3))
    start = draw(st.integers(0, 6))
    has_range = tier in (Tier.BROKER, Tier.LOADER)
    is_producer = tier is Tier.PRODUCER
    return audit_row(
        draw(st.uuids()).hex,
        draw(st.sampled_from(TOPICS)),
        tier=tier,
        outcome=outcome,
        window_start_ms=draw(st.sampled_from(STARTS if draw(st.booleans()) else STARTS[:4])),
        count=count,
        fingerprint=draw(st.sampled_from((count, count, 9))),
        application=draw(st.sampled_from(("shop", "bill"))),
        emitted_at_ms=draw(st.integers(0, 8)) * WINDOW_MS,
        sent=count + draw(st.sampled_from((0, 0, 1))) if is_producer else 0,
        crashed=draw(st.booleans()) if is_producer else False,
        partition=draw(st.integers(0, 1)) if has_range else -1,
        start=start if has_range else -1,
        end=start + draw(st.integers(1, 3)) if has_range else -1,
    )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(rows(), min_size=1, max_size=6)),
        st.tuples(st.just("add"), st.lists(rows(), min_size=1, max_size=6)),
        st.tuples(
            st.just("update"), st.tuples(st.integers(-1, 20), st.sets(st.sampled_from(TOPICS)), st.integers(1, 3))
        ),
        st.tuples(st.just("accept"), st.integers(0, 9)),
        st.tuples(st.just("withdraw"), st.integers(0, 9)),
    ),
    max_size=12,
)


@settings(max_examples=examples(0.4), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=STEPS, last_ms=st.integers(0, 20), portion=st.sampled_from((1, 3, 4000)))
def test_stored_verdicts_equal_those_of_all_rows(
    store: AuditStore, steps: list[tuple[str, Any]], last_ms: int, portion: int
) -> None:
    empty(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update, "PORTION_WINDOWS", portion)
        for step, value in (*steps, ("update", (last_ms, (), 2))):
            if step == "add":
                store.add_rows(value)
            elif step == "update":
                times, counting, grace = value
                now_ms = times * WINDOW_MS
                store.update_verdicts(now_ms=now_ms, grace_ms=grace * WINDOW_MS, policy=policy_of(counting))
                check_stored(store, now_ms, grace * WINDOW_MS, policy_of(counting, store.accepted()))
            else:
                decide(store, step, value)


def test_portion_notes_both_tiers_that_a_topic_gains_in_different_windows(
    store: AuditStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first window of the portion has the first count of the log; it makes the portion read the other window too,
    which has the first count of the table."""
    monkeypatch.setattr(update, "PORTION_WINDOWS", 1)
    later = 5 * WINDOW_MS
    store.add_rows([audit_row("sent", "b", window_start_ms=later, count=1, sent=1)])
    store.update_verdicts(now_ms=0, grace_ms=GRACE_MS, policy=policy_of(()))
    stored = {"count": 0, "fingerprint": 0, "partition": 0, "start": 0, "end": 1}
    store.add_rows(
        [
            audit_row("log", "b", tier=Tier.BROKER, outcome=AuditOutcome.STORED, window_start_ms=0, **stored),
            audit_row("table", "b", tier=Tier.LOADER, outcome=AuditOutcome.WRITTEN, window_start_ms=later, **stored),
        ]
    )
    store.update_verdicts(now_ms=0, grace_ms=GRACE_MS, policy=policy_of(()))
    check_stored(store, 0, GRACE_MS, policy_of(()))


@pytest.fixture
def store(new_address: NewAddress) -> Iterator[AuditStore]:
    with AuditStore(new_address()) as opened:
        yield opened


def empty(store: AuditStore) -> None:
    """Deletes all rows, so that all examples share the compiled statements of one store."""
    with store.database.writing() as connection:
        for table in METADATA.sorted_tables:
            if table is not STORE_STATE:
                connection.execute(sa.delete(table))


def decide(store: AuditStore, step: str, place: int) -> None:
    windows = [window for topic in store.topics() for window in store.windows(topic)]
    chosen = windows[place : place + 2]
    accepted = [Acceptance(one.topic, one.window_start_ms, one.verdict, one.difference, "r", "u", 5) for one in chosen]
    (store.accept if step == "accept" else store.withdraw)(accepted)


def check_stored(store: AuditStore, now_ms: int, grace_ms: int, policy: FindingPolicy) -> None:
    summaries = {one.topic: one for one in store.topic_summaries(now_ms)}
    facts = {topic: list(store.facts(topic)) for topic in store.topics()}
    for topic in store.topics():
        expected = reconcile_topic(
            topic, facts[topic], store.offset_check(topic), now_ms=now_ms, grace_ms=grace_ms, policy=policy
        )
        windows = store.windows(topic)
        assert [
            (one.window_start_ms, one.verdict, one.hop, one.difference, one.missing, one.extra) for one in windows
        ] == [
            (one.facts.window_start_ms, one.verdict, one.hop, one.difference, one.missing, one.extra)
            for one in sorted(expected.windows, key=lambda one: one.facts.window_start_ms)
        ]
        sentences = {one.facts.window_start_ms: one.sentence for one in expected.windows}
        for one in windows:
            assert one.sentence == ("" if one.verdict is AuditVerdict.COMPLETE else sentences[one.window_start_ms])
        assert summaries[topic].complete_until_loaded_ms == expected.complete_until_ms
        assert summaries[topic].verdict is expected.verdict
        strip = bytearray(EMPTY_STRIP)
        for one in windows:
            if one.has_end:
                strip[place_of(one.window_start_ms)] = STATE_BYTES[one.verdict]
        assert store.strips(0, 0, [topic]).get(topic, EMPTY_STRIP) == bytes(strip)
        check_events(store, topic)
    check_report(store, facts, now_ms, grace_ms, policy)


def check_events(store: AuditStore, topic: str) -> None:
    """Each window with a finding is in one open event of its kind, and the sums are right."""
    events = [one for one in store.events(0, only_open=True) if one.topic == topic]
    bad = [one for one in store.windows(topic) if one.verdict in EVENT_VERDICTS]
    for window in bad:
        (_event,) = [
            one
            for one in events
            if (one.verdict, one.hop) == (window.verdict, window.hop)
            and one.start_ms <= window.window_start_ms < one.end_ms
        ]
    for values in ("missing", "extra"):
        assert sum(getattr(one, values) for one in events) == sum(getattr(one, values) for one in bad)
    assert sum(one.windows for one in events) == len(bad)
    assert len({one.id for one in store.events(0)}) == len(store.events(0))


def check_report(store: AuditStore, facts: Any, now_ms: int, grace_ms: int, policy: FindingPolicy) -> None:
    for period in (Period(), Period(WINDOW_MS, 2 * WINDOW_MS)):
        expected = reconcile_topics(
            (window for topic in facts for window in facts[topic]),
            {topic: store.offset_check(topic) for topic in facts},
            now_ms=now_ms,
            grace_ms=grace_ms,
            policy=policy,
            period=period,
        )
        found = store.report(list(facts), now_ms=now_ms, period=period)
        scattered = {topic for topic in facts if any(one.window_start_ms == SCATTERED_MS for one in facts[topic])}
        assert [values_of(one) for one in found if one.topic not in scattered] == [
            values_of(one) for one in expected if one.topic not in scattered
        ]


def values_of(result: Any) -> tuple[Any, ...]:
    values = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    incomplete = [one for one in values.pop("windows") if one.verdict is not AuditVerdict.COMPLETE]
    windows = [(one.facts.window_start_ms, one.verdict, one.difference, one.sentence) for one in incomplete]
    return *values.values(), windows


def update_at(store: AuditStore, number: int) -> None:
    store.update_verdicts(now_ms=number * WINDOW_MS, grace_ms=GRACE_MS)


def test_process_killed_between_rows_and_verdicts_loses_no_verdict(new_address: NewAddress) -> None:
    address = new_address()
    with AuditStore(address) as store:
        store.add_rows([*three_tiers("a", 0), *three_tiers("a", 1, lost=1)])

    def dying(connection: Any, cursor: Any, statement: str, *others: Any) -> None:
        if statement.startswith("DELETE FROM touched_window"):
            raise KeyboardInterrupt

    sa.event.listen(Engine, "before_cursor_execute", dying)
    try:
        with AuditStore(address) as store, pytest.raises(KeyboardInterrupt):
            update_at(store, 9)
    finally:
        sa.event.remove(Engine, "before_cursor_execute", dying)
    with AuditStore(address) as store:
        assert (store.windows("a"), store.events(0), store.revision()) == ([], [], 0)
        update_at(store, 9)
        assert [one.verdict for one in store.windows("a")] == [AuditVerdict.COMPLETE, AuditVerdict.MISSING]


def add_and_update(address: Path | str, writer: int) -> None:
    with AuditStore(address) as store:
        for number in range(5):
            store.add_rows([*three_tiers("a", number, lost=number % 2)[writer::2], *three_tiers(f"w{writer}", number)])
            update_at(store, 30)


def test_two_updaters_at_once_lose_no_window(new_address: NewAddress) -> None:
    address = new_address()
    processes = [
        multiprocessing.get_context("spawn").Process(target=add_and_update, args=(address, number)) for number in (0, 1)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    with AuditStore(address) as store:
        assert [one.topic for one in store.topic_summaries(30 * WINDOW_MS)] == ["a", "w0", "w1"]
        check_stored(store, 30 * WINDOW_MS, GRACE_MS, FindingPolicy())
        assert store.update_verdicts(now_ms=30 * WINDOW_MS, grace_ms=GRACE_MS).windows == 0


def test_locked_database_delays_an_update_and_no_reader(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    with AuditStore(path) as store, AuditStore(path) as other:
        store.add_rows(three_tiers("a", 0))
        locked = threading.Event()

        def lock() -> None:
            with other.database.writing():
                locked.set()
                time.sleep(5)

        thread = threading.Thread(target=lock)
        thread.start()
        assert locked.wait(60)
        assert store.topics() == ["a"]
        assert thread.is_alive(), "the reader did not wait"
        update_at(store, 9)
        thread.join()
        assert [one.verdict for one in store.windows("a")] == [AuditVerdict.COMPLETE]


def test_full_or_unwritable_database_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    with AuditStore(path) as store:
        store.add_rows(three_tiers("a", 0))
        with store.database._engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1")
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreUnavailable, match="full"):
            store.add_rows([row for number in range(500) for row in three_tiers("b", number)])
        assert store.topics() == ["a"]


def test_windows_of_1970_and_9999_have_verdicts_and_strips(new_address: NewAddress) -> None:
    last_ms = window_start(TIME_MS_MAX)
    far = [dataclasses.replace(row, window_start_ms=last_ms, id=f"{row.id}-9999") for row in three_tiers("a", 0)]
    with AuditStore(new_address()) as store:
        store.add_rows([*three_tiers("a", 0), *far])
        update_at(store, 9)
        assert [(one.window_start_ms, one.verdict) for one in store.windows("a")] == [
            (0, AuditVerdict.COMPLETE),
            (last_ms, AuditVerdict.COMPLETE),
        ]
        day = day_of(last_ms)
        assert store.strips(0, 0)["a"][0] == store.strips(day, day)["a"][143] == STATE_BYTES[AuditVerdict.COMPLETE]
        (summary,) = store.topic_summaries(9 * WINDOW_MS)
        assert summary.complete_until_loaded_ms == WINDOW_MS
        with pytest.raises(ValueError, match="more than"):
            store.strips(0, day)


def test_month_of_counts_at_once_is_compared_in_portions(
    new_address: NewAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update, "PORTION_WINDOWS", 1000)
    with AuditStore(new_address()) as store:
        store.add_rows(row for number in range(30 * 144) for row in three_tiers("a", number, lost=number == 77))
        result = store.update_verdicts(now_ms=9999 * WINDOW_MS, grace_ms=GRACE_MS)
        assert (result.windows, store.revision()) == (4320, 5)
        states = store.strips(0, 29)["a"]
        assert [number for number, state in enumerate(states) if state != 1] == [77]
        assert STATE_VERDICTS[states[77]] is AuditVerdict.MISSING
        (event,) = store.events(0)
        assert (event.start_ms, event.missing, event.hop) == (77 * WINDOW_MS, 1, Hop.PRODUCER_TO_LOG)


def test_open_event_names_producers_that_sent_only_its_messages(new_address: NewAddress) -> None:
    lossy = {"application": "cart", "host": "web-2"}
    with AuditStore(new_address()) as store:
        for number in range(6):
            store.add_rows(three_tiers("a", number))
        extra = three_tiers("a", 3, lost=10)[0]
        store.add_rows([dataclasses.replace(extra, id="lossy", **lossy)])
        update_at(store, 20)
        (event,) = store.events(0)
        assert (event.producers, event.missing) == ((("cart", "web-2"),), 10)
        assert event.command == "headrace audit report --topic a"


def test_event_keeps_its_id_while_it_grows_and_closes_when_messages_arrive(new_address: NewAddress) -> None:
    with AuditStore(new_address()) as store:
        store.add_rows(three_tiers("a", 3, lost=1))
        update_at(store, 20)
        (first,) = store.events(0)
        store.add_rows([*three_tiers("a", 4, lost=2), *three_tiers("a", 2, lost=1), *three_tiers("a", 9)])
        update_at(store, 21)
        (grown,) = store.events(0)
        assert (grown.id, grown.start_ms, grown.windows, grown.missing) == (first.id, 2 * WINDOW_MS, 3, 4)
        assert (grown.opened_at_ms, grown.clean_windows) == (first.opened_at_ms, 1)
        late = [
            dataclasses.replace(
                row, id=f"late-{row.id}", count=number, fingerprint=number, start=900 + 9 * number, end=909 + 9 * number
            )
            for number, place in ((1, 3), (2, 4), (1, 2))
            for row in three_tiers("a", place)[1:]
        ]
        store.add_rows(late)
        update_at(store, 22)
        (closed,) = store.events(0)
        assert (closed.id, closed.closed_at_ms, closed.resolution) == (first.id, 22 * WINDOW_MS, "complete")
        assert store.events(0, only_open=True) == []


def test_a_window_changes_when_its_verdict_or_difference_does(new_address: NewAddress) -> None:
    """A consumer's counts are compared again, and change neither."""
    with AuditStore(new_address()) as store:
        store.add_rows(three_tiers("a", 3, lost=1))
        update_at(store, 20)
        consumed = {"id": "consumed", "tier": Tier.CONSUMER, "outcome": AuditOutcome.CONSUMED, "partition": -1}
        store.add_rows([dataclasses.replace(three_tiers("a", 3)[0], **consumed)])
        update_at(store, 21)
        (window,) = store.windows("a")
        assert (window.changed_at_ms, bool(window.consumed)) == (20 * WINDOW_MS, True)
        more = [dataclasses.replace(row, id=f"more-{row.id}") for row in three_tiers("a", 3)[:1]]
        store.add_rows(more)
        update_at(store, 22)
        assert store.windows("a")[0].changed_at_ms == 22 * WINDOW_MS


def test_events_of_topics_that_begin_together_are_one_incident_with_a_stable_id(new_address: NewAddress) -> None:
    with AuditStore(new_address()) as store:
        store.add_rows(three_tiers("b", 3, lost=1))
        update_at(store, 20)
        (incident,) = store.incidents(0)
        store.add_rows(three_tiers("a", 4, lost=1))
        update_at(store, 21)
        (both,) = store.incidents(0, only_open=True)
        assert (both.id, both.topics, both.missing) == (incident.id, ("a", "b"), 2)
        assert [event.topic for event in store.events(0, topic="a")] == ["a"]
        found = next(one for one in store.windows("b"))
        store.accept([Acceptance("b", found.window_start_ms, found.verdict, found.difference, "r", "u", 1)])
        update_at(store, 22)
        (rest,) = store.incidents(0, only_open=True)
        assert rest.id == incident.id, "the id stays when the first event closes"


def test_times_to_completeness_begin_at_the_end_of_the_window(new_address: NewAddress) -> None:
    producer, *_ = three_tiers("a", 0)
    rows = [dataclasses.replace(producer, count=1000, sent=1000, fingerprint=1000)]
    for number, (count, minute) in enumerate(((990, 1), (9, 2), (1, 4))):
        for tier, outcome, later_ms in ((Tier.BROKER, AuditOutcome.STORED, 0), (Tier.LOADER, AuditOutcome.WRITTEN, 5)):
            emitted_at_ms = WINDOW_MS + minute * 60_000 + later_ms
            values = {"count": count, "fingerprint": count, "emitted_at_ms": emitted_at_ms}
            span = {"partition": 0, "start": number * 10, "end": number * 10 + 10}
            rows.append(audit_row(f"{tier}-{number}", tier=tier, outcome=outcome, **values, **span))
    with AuditStore(new_address()) as store:
        store.add_rows(rows)
        update_at(store, 9)
        (window,) = store.windows("a")
        assert window.log_times == (60_000, 120_000, 240_000)
        assert window.loaded_times == (60_005, 120_005, 240_005)
        times = store.completeness_times(0, WINDOW_MS)
        assert (times["log"].share_999.p95_ms, times["loaded"].all.p50_ms) == (120_000, 240_005)
        assert store.last_counted_by_tier()[Tier.LOADER] == WINDOW_MS + 240_005


def test_names_with_nul_characters_are_stored(new_address: NewAddress) -> None:
    with AuditStore(new_address()) as store:
        store.add_rows([audit_row("x\0y", "to\0pic", host="<script>\u202e")])
        update_at(store, 1)
        assert [one.topic for one in store.topic_summaries(0)] == ["to\ufffdpic"]
