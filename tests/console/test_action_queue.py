"""The queue of actions and its worker, with given results of commands."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from headrace.console.actions import storage
from headrace.console.actions.kinds import ACTION_KINDS
from headrace.console.actions.outcome import FACTS_MAX, ActionOutcome, of_accepted_windows, of_rewrite
from headrace.console.actions.storage import (
    CONFIRM_MS_MAX,
    LEASE_MS,
    ActionState,
    ActionStore,
    ConsoleAction,
    TooManyActions,
    queue_step,
)
from headrace.console.actions.worker import ActionWorker, CommandResult
from headrace.console.database import ConsoleDatabase
from headrace.console.errors import ConsoleUnusable

DISCARD, SILENCE = ACTION_KINDS["quarantine-discard"], ACTION_KINDS["alert-silence"]
ORDERS = {"topic": "orders", "code": ""}
DISK = {"subject": "disk [of] x", "kind": "disk-low", "duration": "2h"}
NOW_MS = 1_795_000_200_000
DOCUMENT = {"discarded": {"framing": 2}, "left": {"malformed": 1}, "commit_number": 0, "problems": [], "notes": []}
COMMITTED = {**DOCUMENT, "commit_number": 9}
PROBLEM = {**DOCUMENT, "discarded": {}, "problems": ["a file is missing"]}


@dataclass
class Queue:
    """A queue whose worker's commands return the given results, and the words of these commands."""

    store: ActionStore
    results: list[CommandResult] = field(default_factory=list)
    commands: list[Sequence[str]] = field(default_factory=list)
    now_ms: int = NOW_MS

    def worker(self) -> ActionWorker:
        return ActionWorker(self.store, self.run, lambda: self.now_ms)

    def run(self, words: Sequence[str], is_wanted: Callable[[], bool]) -> CommandResult:
        assert is_wanted()
        self.commands.append(words)
        return self.results.pop(0)

    def request(self, topic: str = "orders") -> ConsoleAction:
        return self.store.request(DISCARD, {**ORDERS, "topic": topic}, "lea", self.now_ms)[0]

    def checked(self, topic: str = "orders") -> ConsoleAction:
        self.results.insert(0, CommandResult(DOCUMENT))
        action = self.request(topic)
        assert self.worker().step()
        return self.found(action)

    def confirmed(self, topic: str = "orders") -> ConsoleAction:
        action = self.checked(topic)
        assert self.store.confirm(action.id, "max", "ticket 4711", self.now_ms)
        return self.found(action)

    def found(self, action: ConsoleAction) -> ConsoleAction:
        found = self.store.find(action.id)
        assert found is not None
        return found


@pytest.fixture
def queue(empty_database_url: str) -> Queue:
    return Queue(ActionStore(ConsoleDatabase(empty_database_url)))


def test_action_runs_after_dry_run_and_confirmation_only(queue: Queue) -> None:
    action = queue.checked()
    assert (action.state, action.dry_run and action.dry_run.count, action.finished_ms) == ("dry run done", 2, None)
    assert not queue.worker().step()
    assert queue.store.confirm(action.id, "max", "ticket 4711", NOW_MS)
    queue.results = [CommandResult(COMMITTED)]
    assert queue.worker().step()
    done = queue.found(action)
    assert (done.state, done.requested_by, done.confirmed_by, done.reason) == ("done", "lea", "max", "ticket 4711")
    assert done.result is not None
    assert (done.result.count, done.result.commit_number, done.finished_ms) == (2, 9, NOW_MS)
    assert not queue.worker().step()
    dry, real = queue.commands
    common = ("--format=json", "--", "orders")
    assert dry == ("quarantine", "discard", "--because=dry run", "--dry-run", *common)
    assert real == ("quarantine", "discard", "--because=ticket 4711 (max (console))", "--at-most=2", *common)


def test_values_that_look_like_flags_or_patterns_stay_values() -> None:
    words = DISCARD.real_command({"topic": "-x", "code": "framing"}, "--all", "lea", 3)
    assert words[-2:] == ("--", "-x")
    assert "--because=--all (lea (console))" in words
    assert "--subject=disk [[]of] x" in SILENCE.dry_command(DISK)
    assert DISCARD.undo_command({"topic": "a b", "code": ""}) == ""
    assert ACTION_KINDS["quarantine-accept"].undo_command({"topic": "a b"}).split("'")[1] == "a b"


def test_equal_open_action_is_returned_instead_of_a_second_one(queue: Queue) -> None:
    first = queue.request()
    second, is_new = queue.store.request(DISCARD, dict(reversed(ORDERS.items())), "max", NOW_MS)
    assert (second, is_new) == (first, False)
    assert queue.request("clicks").id != first.id
    assert queue.store.cancel(first.id, "max", NOW_MS)
    assert queue.found(first).error == "cancelled by max"
    assert queue.request().id > first.id


def test_action_is_confirmed_once(queue: Queue) -> None:
    waiting = queue.request()
    assert not queue.store.confirm(waiting.id, "max", "why", NOW_MS)  # before the dry run
    assert queue.store.cancel(waiting.id, "lea", NOW_MS)
    action = queue.confirmed("clicks")
    assert not queue.store.confirm(action.id, "kim", "why", NOW_MS)
    assert not queue.store.cancel(action.id, "kim", NOW_MS)
    assert queue.found(action).confirmed_by == "max"


@pytest.mark.parametrize(("age_ms", "is_confirmed"), [(CONFIRM_MS_MAX - 1, True), (CONFIRM_MS_MAX, False)])
def test_old_dry_run_cannot_be_confirmed(queue: Queue, age_ms: int, is_confirmed: bool) -> None:
    action = queue.checked()
    queue.now_ms += age_ms
    assert queue.store.confirm(action.id, "max", "why", queue.now_ms) == is_confirmed
    queue.results = [CommandResult(COMMITTED)]
    assert queue.worker().step() == is_confirmed
    assert queue.found(action).state == ("done" if is_confirmed else "cancelled")


@pytest.mark.parametrize(
    ("result", "state"),
    [
        (CommandResult(error="the registry cannot be reached"), "failed"),
        (CommandResult(PROBLEM), "failed"),
        (CommandResult([]), "failed"),
        (CommandResult({"discarded": {}}), "failed"),
        (CommandResult({**DOCUMENT, "discarded": {}}), "cancelled"),
    ],
)
def test_dry_run_without_a_change_ends_the_action(queue: Queue, result: CommandResult, state: str) -> None:
    queue.results = [result]
    action = queue.request()
    assert queue.worker().step()
    found = queue.found(action)
    assert (found.state, found.finished_ms, bool(found.error)) == (state, NOW_MS, True)
    assert not queue.store.confirm(action.id, "max", "why", NOW_MS)


def test_silence_without_a_present_alert_can_be_confirmed(queue: Queue) -> None:
    queue.results = [CommandResult({"alerts": []})]
    action, _ = queue.store.request(SILENCE, DISK, "lea", NOW_MS)
    queue.worker().step()
    assert queue.found(action).state == "dry run done"


@pytest.mark.parametrize(
    ("result", "state"),
    [
        (CommandResult(error="the broker is gone"), "failed"),
        (CommandResult(PROBLEM), "failed"),
        (CommandResult({**COMMITTED, "problems": ["the table was not altered"]}), "done"),
    ],
)
def test_change_with_problems_is_done_only_if_it_was_committed(queue: Queue, result: CommandResult, state: str) -> None:
    action = queue.confirmed()
    queue.results = [result]
    queue.worker().step()
    found = queue.found(action)
    assert (found.state, found.finished_ms) == (state, NOW_MS)
    assert found.error or (found.result is not None and found.result.problems)


def test_one_action_runs_at_a_time_and_confirmed_ones_first(queue: Queue) -> None:
    confirmed = queue.confirmed("a")
    waiting = queue.request("b")
    running = queue.store.take("one", NOW_MS)
    assert running is not None
    assert (running.id, running.state) == (confirmed.id, "running")
    assert queue.store.take("two", NOW_MS + LEASE_MS - 1) is None
    assert queue.store.keep(running.id, "one", NOW_MS + 5_000)
    assert not queue.store.keep(running.id, "two", NOW_MS + 5_000)
    assert queue.store.take("two", NOW_MS + 5_000 + LEASE_MS - 1) is None
    assert not queue.store.finish(running.id, "two", ActionState.DONE, None, "", NOW_MS)
    assert queue.store.finish(running.id, "one", ActionState.DONE, None, "", NOW_MS)
    taken = queue.store.take("two", NOW_MS)
    assert taken is not None
    assert (taken.id, taken.state) == (waiting.id, "dry run running")


def test_action_of_a_dead_worker_is_interrupted_and_never_runs_again(queue: Queue) -> None:
    action = queue.confirmed()
    assert queue.store.take("dead", NOW_MS) is not None
    assert queue.store.take("other", NOW_MS + LEASE_MS) is None
    found = queue.found(action)
    assert (found.state, found.finished_ms, bool(found.error)) == ("interrupted", NOW_MS + LEASE_MS, True)
    assert not queue.store.keep(action.id, "dead", NOW_MS + LEASE_MS)
    assert queue.store.take("other", NOW_MS + 10 * LEASE_MS) is None
    # The worker was only stopped for a while, and its command has made the change.
    assert queue.store.finish(action.id, "dead", ActionState.DONE, None, "", NOW_MS + LEASE_MS)
    assert queue.found(action).state == "done"
    assert not queue.store.finish(action.id, "dead", ActionState.FAILED, None, "", NOW_MS)


def test_interrupted_dry_run_stays_interrupted_and_lets_the_next_action_run(queue: Queue) -> None:
    action, waiting = queue.request("a"), queue.request("b")
    assert queue.store.take("dead", NOW_MS) is not None
    taken = queue.store.take("other", NOW_MS + LEASE_MS)
    assert taken is not None
    assert (taken.id, queue.found(action).state) == (waiting.id, "interrupted")
    assert not queue.store.finish_dry_run(action.id, "dead", ActionState.CHECKED, None, "", NOW_MS)
    assert not queue.store.finish(action.id, "dead", ActionState.DONE, None, "", NOW_MS)
    assert queue.found(action).state == "interrupted"


def test_unknown_action_of_another_release_fails(queue: Queue) -> None:
    action, _ = queue.store.request(replace(DISCARD, name="other"), ORDERS, "lea", NOW_MS)
    queue.worker().step()
    assert queue.found(action).state == "failed"
    assert queue.commands == []


def test_number_of_open_and_of_stored_actions_is_limited(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "OPEN_MAX", 3)
    monkeypatch.setattr(storage, "KEPT_MAX", 4)
    first = queue.request("open")
    for number in range(6):
        assert queue.store.cancel(queue.request(f"t{number}").id, "lea", NOW_MS)
    assert [one.about for one in queue.store.newest(100)] == ["t5", "t4", "t3", "t2", first.about]
    assert [one.about for one in queue.store.newest(1)] == ["t5"]
    for topic in ("a", "b"):
        queue.request(topic)
    with pytest.raises(TooManyActions):
        queue.request("c")
    assert queue.request("a").about == "a"  # the open one


def test_each_action_runs_once_with_several_workers(queue: Queue) -> None:
    wanted = [queue.checked(f"t{number}") for number in range(6)]
    assert all(queue.store.confirm(one.id, "max", "why", NOW_MS) for one in wanted)
    running, most, commands = 0, 0, []
    lock = threading.Lock()

    def run(words: Sequence[str], is_wanted: Callable[[], bool]) -> CommandResult:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            commands.append(words)
        is_wanted()
        with lock:
            running -= 1
        return CommandResult(COMMITTED)

    def work() -> None:
        worker = ActionWorker(queue.store, run, lambda: NOW_MS)
        while any(queue.found(one).state.is_open for one in wanted):
            worker.step()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(words[-1] for words in commands) == sorted(one.about for one in wanted)
    assert most == 1


def test_queue_step_of_an_idle_queue_changes_nothing(queue: Queue) -> None:
    assert queue_step([queue.checked()], NOW_MS) == storage.QueueStep()


def test_outcome_names_changed_and_all_messages_of_each_reason() -> None:
    found = of_rewrite({**COMMITTED, "discarded": {"framing": 2}, "left": {"framing": 1, "malformed": 1_000}})
    assert found.facts == (("framing", "2 of 3"), ("malformed", "0 of 1,000"))
    assert ActionOutcome.of_json(found.as_json()) == found


def test_outcome_of_many_windows_is_limited() -> None:
    window = {"window": "w", "verdict": "missing", "difference": -1_000}
    assert of_accepted_windows([window] * FACTS_MAX).facts == (("w", "missing -1,000"),) * FACTS_MAX
    found = of_accepted_windows([window] * (FACTS_MAX + 3))
    assert (found.count, len(found.facts), found.facts[-1]) == (FACTS_MAX + 3, FACTS_MAX + 1, ("more", "3"))


@pytest.mark.parametrize("url", ["mysql://host/name", "sqlite:////proc/none/console.db"])
def test_database_that_cannot_be_used_names_the_setting(url: str) -> None:
    with pytest.raises(ConsoleUnusable, match=r"^console\.database_url cannot be used: "):
        ActionStore(ConsoleDatabase(url))
