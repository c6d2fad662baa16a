"""Deliveries with the real store: order, retries, silences, crashes, several processes."""

from __future__ import annotations

import contextlib
import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.alerts import evaluate, storage
from headrace.pipeline.alerts.alert import AlertState
from headrace.pipeline.alerts.delivery import (
    BACK_OFF_MS,
    BACK_OFF_MS_MAX,
    BATCH_MAX,
    GIVE_UP_MS,
    LEASE_MS,
    AlertEvent,
    DeliveryOutcome,
    Silence,
    back_off_ms,
    silence_of,
)
from headrace.pipeline.alerts.errors import AlertStoreUnavailable, NotificationFailed
from headrace.pipeline.alerts.evaluate import DELIVERY_S_MAX, AlertResult, evaluate_reports
from headrace.pipeline.alerts.message import Notice
from headrace.pipeline.alerts.rule import rules_of
from headrace.pipeline.alerts.storage import AlertStore
from headrace.pipeline.alerts.target import AlertTarget
from headrace.pipeline.status.finding import SourceReport, finding
from support.examples import examples
from support.memory_directory import memory_parent

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
RULES = rules_of([{"kind": "disk-low", "hold": "0m"}])
KINDS = {"orders": "data-lost", "clicks": "data-lost", "payments": "audit-missing", "disk": "disk-low"}


class Killed(BaseException):
    """The process is killed."""


@dataclass
class Receiver:
    """A target that records what it receives, and fails in the way of `mode`."""

    mode: str = "accept"
    received: list[tuple[str, AlertEvent]] = field(default_factory=list)
    requests: list[Sequence[Notice]] = field(default_factory=list)
    on_receive: Callable[[Notice, int], None] = lambda notice, now_ms: None

    def send(self, notices: Sequence[Notice], now_ms: int) -> None:
        if self.mode == "killed before":
            raise Killed
        if self.mode in ("down", "reject"):
            raise NotificationFailed(self.mode, is_target_down=self.mode == "down")
        self.requests.append(notices)
        for one in notices:
            self.on_receive(one, now_ms)
            self.received.append((one.alert.id, one.event))
        if self.mode == "killed after":
            raise Killed

    def events(self) -> list[str]:
        return [event.value for _, event in self.received]

    def distinct(self, alert_id: str) -> list[AlertEvent]:
        """The events of an alert without repetitions."""
        return [event for event, _ in itertools.groupby(event for id, event in self.received if id == alert_id)]


@dataclass
class Machine:
    """A store with receivers and a clock."""

    url: str
    receivers: dict[str, Receiver]
    repeat_ms: int | None = None
    is_refreshed: bool = False
    now_ms: int = 1_000 * HOUR_MS

    @functools.cached_property
    def store(self) -> AlertStore:
        return AlertStore(self.url)

    def restart(self) -> None:
        """Opens the store again, as a new process does."""
        self.store.close()
        del self.store

    def evaluate(self, *subjects: str, after_ms: int = MINUTE_MS, checked: bool = True) -> AlertResult:
        self.now_ms += after_ms
        findings = tuple(finding(KINDS.get(one, "data-lost"), one, "a problem") for one in subjects)
        targets = [
            AlertTarget(name, self.repeat_ms, self.is_refreshed, receiver.send)
            for name, receiver in self.receivers.items()
        ]
        report = SourceReport(findings=findings, is_checked=checked, source="s")
        return evaluate_reports(self.store, [report], RULES, targets, self.now_ms)

    def silence(self, subject: str, duration_ms: int, kind: str = "*") -> str:
        silence = Silence(f"s{self.now_ms}", kind, subject, "reason", "author", self.now_ms, self.now_ms + duration_ms)
        with self.store.changing() as change:
            change.add_silence(silence)
        return silence.id


@pytest.fixture
def machine(empty_database_url: str) -> Iterator[Machine]:
    machine = Machine(empty_database_url, {"hook": Receiver()})
    yield machine
    machine.store.close()


@pytest.fixture
def hook(machine: Machine) -> Receiver:
    return machine.receivers["hook"]


def test_each_transition_is_delivered_once(machine: Machine, hook: Receiver) -> None:
    for _ in range(3):
        machine.evaluate("orders")
    for _ in range(12):
        machine.evaluate()
    assert hook.events() == ["firing", "resolved"]


def test_events_have_the_times_at_which_the_alert_fired_and_was_resolved(machine: Machine, hook: Receiver) -> None:
    machine.evaluate("orders")
    fired_ms = machine.now_ms
    hook.mode = "down"
    for _ in range(12):
        machine.evaluate()
    with machine.store.reading() as reader:
        (alert,) = reader.alerts()
    hook.mode = "accept"
    machine.evaluate(after_ms=HOUR_MS)
    assert alert.resolved_ms is not None and fired_ms < alert.resolved_ms < machine.now_ms
    assert [one.event_ms for request in hook.requests for one in request] == [fired_ms, alert.resolved_ms]


def test_alerts_of_one_kind_share_a_request(machine: Machine, hook: Receiver) -> None:
    machine.evaluate("orders", "clicks", "disk")
    assert sorted(len(request) for request in hook.requests) == [1, 2]


def test_a_flood_of_alerts_is_sent_in_requests_of_limited_size(machine: Machine, hook: Receiver) -> None:
    topics = [f"t{number}" for number in range(2 * BATCH_MAX + 1)]
    result = machine.evaluate(*topics)
    assert [len(request) for request in hook.requests] == [BATCH_MAX, BATCH_MAX, 1]
    assert result.delivered == len(topics)


def test_an_event_is_tried_again_with_back_off_until_it_is_accepted(machine: Machine, hook: Receiver) -> None:
    hook.mode = "down"
    assert machine.evaluate("orders").failures == {"hook": "down"}
    assert machine.evaluate("orders", after_ms=BACK_OFF_MS - 1).failures == {}  # not tried
    assert machine.evaluate("orders", after_ms=1).failures == {"hook": "down"}
    hook.mode = "accept"
    assert machine.evaluate("orders", after_ms=2 * BACK_OFF_MS - 1).delivered == 0
    assert machine.evaluate("orders", after_ms=1).delivered == 1


def test_back_off_doubles_up_to_its_maximum() -> None:
    assert [back_off_ms(n) for n in (1, 2, 3)] == [BACK_OFF_MS, 2 * BACK_OFF_MS, 4 * BACK_OFF_MS]
    assert back_off_ms(10**6) == BACK_OFF_MS_MAX


def test_a_target_that_was_down_gets_both_events_in_order(machine: Machine, hook: Receiver) -> None:
    hook.mode = "down"
    for _ in range(5):
        machine.evaluate("orders")
    for _ in range(12):
        machine.evaluate()
    hook.mode = "accept"
    machine.evaluate(after_ms=HOUR_MS)
    assert hook.events() == ["firing", "resolved"]


def test_a_target_that_is_down_gets_one_request_in_an_evaluation(machine: Machine, hook: Receiver) -> None:
    calls: list[int] = []

    def send(notices: Sequence[Notice], now_ms: int) -> None:
        calls.append(len(notices))
        raise NotificationFailed("down", is_target_down=True)

    hook.send = send  # type: ignore[method-assign]
    machine.evaluate("orders", "disk")
    assert len(calls) == 1


def test_a_rejected_alert_does_not_delay_others(machine: Machine, hook: Receiver) -> None:
    def send(notices: Sequence[Notice], now_ms: int) -> None:
        if notices[0].alert.kind == "data-lost":
            raise NotificationFailed("HTTP 400", is_target_down=False)
        hook.received += [(one.alert.id, one.event) for one in notices]

    hook.send = send  # type: ignore[method-assign]
    assert machine.evaluate("orders", "disk").failures == {"hook": "HTTP 400"}
    assert hook.events() == ["firing"]


def test_a_delivery_is_abandoned_after_a_day_and_repeated_while_the_alert_fires(
    machine: Machine, hook: Receiver
) -> None:
    machine.repeat_ms = 4 * HOUR_MS
    hook.mode = "reject"
    machine.evaluate("orders")
    machine.evaluate("orders", after_ms=GIVE_UP_MS)
    with machine.store.reading() as reader:
        (delivery,) = reader.log(10)
    assert (delivery.outcome, delivery.attempts) == (DeliveryOutcome.FAILED, 1)
    hook.mode = "accept"
    assert machine.evaluate("orders", after_ms=4 * HOUR_MS).delivered == 1


def test_a_firing_alert_is_repeated_after_the_interval(machine: Machine, hook: Receiver) -> None:
    machine.repeat_ms = 4 * HOUR_MS
    for _ in range(9):
        machine.evaluate("orders", after_ms=HOUR_MS)
    assert hook.events() == ["firing"] * 3
    machine.evaluate()
    machine.evaluate(after_ms=HOUR_MS)
    assert hook.events() == ["firing"] * 3 + ["resolved"]


def test_a_refreshed_target_gets_firing_alerts_at_each_evaluation(machine: Machine, hook: Receiver) -> None:
    machine.is_refreshed = True
    machine.evaluate("orders")
    machine.evaluate("orders")
    assert hook.events() == ["firing"] * 3  # the first evaluation sends the event and refreshes it
    machine.silence("orders", HOUR_MS)
    machine.evaluate("orders")
    assert len(hook.received) == 3
    with machine.store.reading() as reader:
        assert len(reader.log(10)) == 1


def test_a_new_target_gets_the_alerts_that_fire(machine: Machine) -> None:
    machine.evaluate("orders")
    machine.receivers["new"] = Receiver()
    machine.evaluate("orders")
    assert machine.receivers["new"].events() == ["firing"]


def test_deliveries_to_a_removed_target_are_finished(machine: Machine, hook: Receiver) -> None:
    hook.mode = "down"
    machine.evaluate("orders")
    machine.receivers = {}
    machine.evaluate("orders")
    with machine.store.reading() as reader:
        assert [one.outcome for one in reader.log(10)] == [DeliveryOutcome.FAILED]


def test_a_slow_target_gets_the_rest_in_the_next_evaluation(
    machine: Machine, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    times_s = itertools.count(0.0, DELIVERY_S_MAX * 0.4)
    monkeypatch.setattr(evaluate.time, "monotonic", lambda: next(times_s))
    topics = [f"t{number}" for number in range(3 * BATCH_MAX)]
    assert machine.evaluate(*topics).delivered == 2 * BATCH_MAX
    assert machine.evaluate(*topics).delivered == BATCH_MAX


def test_a_hanging_target_does_not_delay_another(machine: Machine, hook: Receiver) -> None:
    other = machine.receivers["other"] = Receiver()
    hook.mode = "down"
    result = machine.evaluate("orders")
    assert (other.events(), result.failures) == (["firing"], {"hook": "down"})


@pytest.mark.parametrize(("pattern", "is_silenced"), [("orders", True), ("o*", True), ("ORDERS", False), ("o", False)])
def test_silences_match_patterns(machine: Machine, hook: Receiver, pattern: str, is_silenced: bool) -> None:
    machine.silence(pattern, HOUR_MS)
    result = machine.evaluate("orders")
    assert (len(result.silenced), len(result.firing)) == ((1, 0) if is_silenced else (0, 1))
    assert hook.events() == ([] if is_silenced else ["firing"])


@pytest.mark.parametrize(("pattern", "is_silenced"), [("a", True), ("b", True), ("c*", True), ("d", False)])
def test_a_silence_matches_any_topic_of_an_incident(
    machine: Machine, hook: Receiver, pattern: str, is_silenced: bool
) -> None:
    machine.silence(pattern, HOUR_MS)
    found = finding("data-lost", "a", "a problem", others=("b", "clicks"))
    report = SourceReport(findings=(found,), source="s")
    result = evaluate_reports(
        machine.store, [report], RULES, [AlertTarget("hook", None, False, hook.send)], machine.now_ms
    )
    assert (len(result.silenced), len(result.firing)) == ((1, 0) if is_silenced else (0, 1))
    machine.restart()
    with machine.store.reading() as reader:
        (alert,) = reader.alerts()
    assert alert.subjects == ("a", "b", "clicks")


def test_an_alert_that_fires_after_its_silence_is_delivered(machine: Machine, hook: Receiver) -> None:
    machine.silence("orders", HOUR_MS)
    machine.evaluate("orders")
    machine.evaluate("orders", after_ms=HOUR_MS)
    assert hook.events() == ["firing"]


def test_an_alert_that_is_resolved_in_its_silence_is_never_delivered(machine: Machine, hook: Receiver) -> None:
    machine.silence("orders", HOUR_MS)
    machine.evaluate("orders")
    for _ in range(12):
        machine.evaluate()
    machine.evaluate(after_ms=HOUR_MS)
    assert hook.events() == []


def test_a_delivered_alert_that_is_resolved_in_a_silence_is_resolved_after_it(machine: Machine, hook: Receiver) -> None:
    machine.evaluate("orders")
    machine.silence("orders", HOUR_MS)
    machine.evaluate()
    machine.evaluate(after_ms=20 * MINUTE_MS)
    assert hook.events() == ["firing"]
    machine.evaluate(after_ms=HOUR_MS)
    assert hook.events() == ["firing", "resolved"]


def test_an_ended_silence_delivers(machine: Machine, hook: Receiver) -> None:
    silence_id = machine.silence("orders", HOUR_MS)
    machine.evaluate("orders")
    with machine.store.changing() as change:
        assert change.end_silence(silence_id, machine.now_ms)
        assert not change.end_silence(silence_id, machine.now_ms)
        assert not change.end_silence("other", machine.now_ms)
    machine.evaluate("orders")
    assert hook.events() == ["firing"]


@pytest.mark.parametrize("mode", ["killed before", "killed after"])
def test_a_kill_around_a_request_loses_no_event(machine: Machine, hook: Receiver, mode: str) -> None:
    hook.mode = mode
    with pytest.raises(Killed):
        machine.evaluate("orders")
    hook.mode = "accept"
    machine.restart()
    machine.evaluate("orders", after_ms=LEASE_MS - 1)  # another process may still be sending it
    machine.evaluate("orders", after_ms=1)
    machine.evaluate()
    machine.evaluate(after_ms=HOUR_MS)
    assert hook.events() == ["firing"] * (2 if mode == "killed after" else 1) + ["resolved"]


def test_two_evaluations_at_once_send_an_event_once(machine: Machine, hook: Receiver) -> None:
    """The second one runs while the first one sends."""

    def evaluate_again(notice: Notice, now_ms: int) -> None:
        hook.on_receive = lambda notice, now_ms: None
        machine.evaluate("orders")

    hook.on_receive = evaluate_again
    machine.evaluate("orders")
    assert hook.events() == ["firing"]


def test_old_rows_are_deleted_and_the_newest_delivery_of_a_firing_alert_stays(
    machine: Machine, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "DELIVERIES_MAX", 5)
    machine.evaluate("orders")
    for number in range(10):
        machine.evaluate("orders", f"t{number}", after_ms=2 * HOUR_MS)
    machine.silence("x", MINUTE_MS)
    for _ in range(2):
        machine.evaluate("orders", after_ms=2 * HOUR_MS)
    with machine.store.reading() as reader:
        assert len(reader.log(100)) <= 5 + len(reader.alerts())
        assert len(reader.alerts()) == 11
    machine.evaluate("orders", after_ms=31 * 24 * HOUR_MS)
    with machine.store.reading() as reader:
        assert [one.subject for one in reader.alerts()] == ["orders"]
        assert len(reader.log(100)) <= 6
        assert reader.silences() == ()
    assert hook.received.count((reader_id(machine), AlertEvent.FIRING)) == 1


def reader_id(machine: Machine) -> str:
    with machine.store.reading() as reader:
        return reader.alerts()[0].id


def test_a_store_without_alerts_is_empty_and_not_created(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    with AlertStore(path, creates=False) as store, store.reading() as reader:
        assert (reader.alerts(), reader.log(5), reader.evaluated_ms()) == ((), (), None)
    assert not path.exists()


def test_a_later_format_is_refused(machine: Machine) -> None:
    with machine.store.changing() as change:
        change._execute(storage.EVALUATION.update().values(format=99))
    with pytest.raises(AlertStoreUnavailable, match="newer release"):
        AlertStore(machine.url)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "audit.db").write_bytes(b"no database, but long enough for a header" * 100)
    with pytest.raises(AlertStoreUnavailable, match="not a database"):
        AlertStore(f"sqlite:///{tmp_path / 'audit.db'}")


STEPS = st.tuples(
    st.sets(st.sampled_from(sorted(KINDS))),
    st.sampled_from([MINUTE_MS, 11 * MINUTE_MS, 35 * MINUTE_MS]),
    st.booleans(),
    st.sampled_from(["accept", "accept", "down", "reject", "killed before", "killed after"]),
    st.sampled_from(["", "", "", "orders", "*"]),
)


@settings(max_examples=examples(0.3))
@given(steps=st.lists(STEPS, max_size=12))
def test_any_sequence_delivers_each_firing_and_one_resolution(
    steps: list[tuple[set[str], int, bool, str, str]],
) -> None:
    with tempfile.TemporaryDirectory(dir=memory_parent()) as directory:
        url = f"sqlite:///{directory}/audit.db"
        hook = Receiver(on_receive=lambda notice, now_ms: check_not_silenced(machine.store, notice, now_ms))
        machine = Machine(url, {"hook": hook}, repeat_ms=4 * HOUR_MS)
        was_silenced = False
        for subjects, after_ms, checked, mode, silenced in steps:
            hook.mode = mode
            if silenced:
                machine.silence(silenced, 20 * MINUTE_MS)
                was_silenced = True
            with contextlib.suppress(Killed):
                machine.evaluate(*subjects, after_ms=after_ms, checked=checked)
        hook.mode = "accept"
        for _ in range(4):  # silences end, leases and back-offs expire, and all is clean
            machine.evaluate(after_ms=35 * MINUTE_MS)
        check_delivered(machine, hook, was_silenced)
        machine.store.close()


def check_not_silenced(store: AlertStore, notice: Notice, now_ms: int) -> None:
    with store.reading() as reader:
        assert silence_of(notice.alert, reader.silences(), now_ms) is None


def check_delivered(machine: Machine, hook: Receiver, was_silenced: bool) -> None:
    with machine.store.reading() as reader:
        alerts, open_deliveries = reader.alerts(), reader.open_deliveries()
    assert not open_deliveries
    for alert in alerts:
        assert alert.state == AlertState.RESOLVED
        distinct = hook.distinct(alert.id)
        assert distinct == [AlertEvent.FIRING, AlertEvent.RESOLVED] * (len(distinct) // 2)
        if was_silenced:
            assert len(distinct) // 2 <= alert.firings
        else:
            assert len(distinct) // 2 == alert.firings
