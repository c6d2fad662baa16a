"""Slots, races, lost replies, damage, checkpoints and hints of the decision log."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import threading
from pathlib import Path

import pytest

from headrace.loader.apply.engine import Cursor, read_cursor
from headrace.loader.commit.conflict import ConflictRule
from headrace.loader.commit.decision import Decision, DecisionKind, StartOffset
from headrace.loader.commit.decision_log import CHECKPOINT_EVERY, CHECKPOINT_FOLDER, DecisionLog, checkpoint_path
from headrace.loader.commit.json_values import canonical, to_json
from headrace.loader.commit.slots import slot_path
from headrace.loader.commit.state import FileTotals
from headrace.loader.errors import BadDecision, LogReplaced, StorageError, UnsupportedFormat
from headrace.loader.storage.local.slots import LocalSlots
from headrace.loader.work_unit import FileKind
from support.checkout import GOLDEN
from support.loader.loader_samples import clean, decided_file, decided_range, decisions_of, load, topic_decision

FORMAT_1 = GOLDEN / "decision_log" / "format-1"


def open_log(root: Path) -> DecisionLog:
    log = DecisionLog(LocalSlots(root))
    log.open()
    return log


def filled(root: Path, decisions: int) -> DecisionLog:
    log = open_log(root)
    for number in range(decisions):
        first = load(
            f"w{number}",
            {"orders": topic_decision(decided_range(0, number or None, number, number + 1), new=number == 0)},
        )
        assert log.offer(first).decision is not None
    return log


def test_an_offer_takes_the_next_slot_and_is_read_back(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    fresh = open_log(tmp_path)
    state = fresh.read_state()
    assert state.slot == 3
    assert state.topics["orders"].partitions[0].next_offset == 3
    assert [one.work_id for one in decisions_of(fresh, "orders", state, 1)] == ["w1", "w2"]


def test_a_taken_slot_without_conflict_leads_to_the_next(tmp_path: Path) -> None:
    slow = filled(tmp_path, 1)
    slow.read_state()
    open_log(tmp_path).offer(clean("c1", "gone"))
    offered = slow.offer(load("w1", {"orders": topic_decision(decided_range(0, 1, 1, 5))}))
    assert offered.decision is not None
    assert offered.decision.slot == 3


def test_a_taken_slot_with_the_same_offsets_is_a_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = filled(tmp_path, 1), open_log(tmp_path)
    mine = load("slow", {"orders": topic_decision(decided_range(0, 1, 1, 5))})
    theirs = load("fast", {"orders": topic_decision(decided_range(0, 1, 1, 3))})
    put = LocalSlots.put_if_absent

    def overtaken(storage: LocalSlots, path: str, content: bytes) -> bool:
        monkeypatch.setattr(LocalSlots, "put_if_absent", put)
        fast.offer(theirs)
        return put(storage, path, content)

    monkeypatch.setattr(LocalSlots, "put_if_absent", overtaken)
    offered = slow.offer(mine)
    assert offered.decision is None
    assert offered.conflict is not None
    assert offered.conflict.rule is ConflictRule.OFFSETS_DECIDED
    assert offered.state.slot == 2


@pytest.mark.parametrize("answer", [OSError(5, "Input/output error"), False])
def test_a_lost_reply_is_settled_by_reading_the_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: OSError | bool
) -> None:
    log = filled(tmp_path, 1)
    put = LocalSlots.put_if_absent

    def reply_lost(storage: LocalSlots, path: str, content: bytes) -> bool:
        monkeypatch.setattr(LocalSlots, "put_if_absent", put)
        put(storage, path, content)
        if isinstance(answer, OSError):
            raise answer
        return answer

    kept: list[str] = []
    monkeypatch.setattr(LocalSlots, "keep", lambda storage, name: kept.append(name))
    monkeypatch.setattr(LocalSlots, "put_if_absent", reply_lost)
    offered = log.offer(load("w1", {"orders": topic_decision(decided_range(0, 1, 1, 5))}))
    assert offered.decision is not None
    assert (offered.decision.work_id, offered.decision.slot) == ("w1", 2)
    assert kept == [slot_path(2)] * 2, "by the put, and again because that may have failed before it came so far"
    assert open_log(tmp_path).head() == 2


def test_whoever_only_looks_reads_the_same_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = filled(tmp_path, CHECKPOINT_EVERY).read_state()
    shutil.rmtree(tmp_path / CHECKPOINT_FOLDER)
    for name in ("prepare", "put_if_absent", "keep", "replace", "remove", "sweep"):
        monkeypatch.delattr(LocalSlots, name)
    assert DecisionLog(LocalSlots(tmp_path), looks_only=True).read_state() == expected


def test_a_storage_that_keeps_failing_ends_the_offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, 1)
    offer = load("w1", {"orders": topic_decision(decided_range(0, 1, 1, 5))})
    monkeypatch.setattr(LocalSlots, "put_if_absent", lambda *_: False)
    with pytest.raises(StorageError, match=slot_path(2)):
        log.offer(offer)

    def fail(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LocalSlots, "put_if_absent", fail)
    with pytest.raises(OSError, match="No space left"):
        log.offer(offer)


@pytest.mark.parametrize("content", [b"", b'{"body": {', b'{"body":{},"sha256":"0"}'])
def test_error_of_a_damaged_slot_has_its_path(tmp_path: Path, content: bytes) -> None:
    filled(tmp_path, 3)
    path = tmp_path / slot_path(2)
    path.write_bytes(content)
    with pytest.raises(BadDecision) as caught:
        open_log(tmp_path).read_state()
    assert caught.value.path == str(path)


def test_a_missing_slot_before_the_hint_stops(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    (tmp_path / slot_path(2)).unlink()
    with pytest.raises(BadDecision) as refused:
        open_log(tmp_path).read_state()
    assert refused.value.path == str(tmp_path / slot_path(2))


def test_a_copied_slot_stops(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    (tmp_path / slot_path(3)).write_bytes((tmp_path / slot_path(2)).read_bytes())
    with pytest.raises(BadDecision) as refused:
        open_log(tmp_path).read_state()
    assert refused.value.path == str(tmp_path / slot_path(3))
    assert re.search(r"\b2\b", refused.value.reason)


@pytest.mark.parametrize("hint", [None, b"", b"nonsense", b'{"slot": 1}', b'{"slot": 900}', b'{"slot": "x"}', b"[1]"])
@pytest.mark.parametrize("decisions", [0, 1, 2, 7, 20])
def test_the_newest_slot_is_found_whatever_the_hint_says(tmp_path: Path, decisions: int, hint: bytes | None) -> None:
    filled(tmp_path, decisions)
    if hint is None:
        (tmp_path / "head.json").unlink(missing_ok=True)
    else:
        (tmp_path / "head.json").write_bytes(hint)
    assert open_log(tmp_path).head() == decisions


def test_checkpoints_are_left_behind_and_may_be_lost_or_damaged(tmp_path: Path) -> None:
    count = 2 * CHECKPOINT_EVERY + 5
    expected = filled(tmp_path, count).read_state()
    newest = tmp_path / checkpoint_path(2 * CHECKPOINT_EVERY)
    assert newest.exists()
    (tmp_path / slot_path(3)).unlink()  # below the checkpoint: no longer needed to know the state
    assert open_log(tmp_path).read_state() == expected
    newest.write_bytes(b"damaged")
    assert open_log(tmp_path).read_state() == expected


def test_a_log_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    open_log(tmp_path)
    (tmp_path / "format.json").write_text('{"format":3,"read_min":1,"write_min":3}')
    with pytest.raises(UnsupportedFormat) as refused:
        open_log(tmp_path)
    assert refused.value.path == str(tmp_path / "format.json")
    assert re.findall(r"\d+", refused.value.reason) == ["3", "2"]
    DecisionLog(LocalSlots(tmp_path)).check_format(writing=False)


def test_racing_threads_take_slots_without_holes_and_decide_each_offset_once(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    won: list[int] = []

    def work(me: int) -> None:
        log = open_log(tmp_path)
        for number in range(15):
            next_offset = log.read_state().topics["orders"].partitions[0].next_offset
            offer = load(
                f"{me}-{number}",
                {"orders": topic_decision(decided_range(0, next_offset, next_offset, next_offset + 1))},
            )
            if log.offer(offer).decision is not None:
                won.append(next_offset)

    threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = open_log(tmp_path).read_state()
    assert sorted(won) == list(range(1, state.topics["orders"].partitions[0].next_offset))
    assert state.slot == len(won) + 1


def test_a_log_of_the_first_release_goes_on(tmp_path: Path) -> None:
    for path in FORMAT_1.iterdir():
        folder, _, name = path.name.partition("-")
        target = tmp_path / (path.name if folder == "format.json" else f"{folder}/{name}")
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
    log = open_log(tmp_path)
    state = log.read_state()
    assert (state.slot, state.topics["orders"].partitions[0].next_offset) == (3, 15)
    assert state.topics["orders"].quarantine == FileTotals(1, 2, 1_000, 1)
    offered = log.offer(load("w4", {"orders": topic_decision(decided_range(0, 15, 15, 20), revision_before=2)}))
    assert offered.decision is not None
    assert offered.decision.topics["orders"].slot_before == 2
    assert [one.slot for one in decisions_of(log, "orders", offered.state)] == [1, 2, 4]
    assert [one.value.slot for one in log.back("orders", offered.state)] == [4, 2, 1]
    assert open_log(tmp_path).read_state() == offered.state
    assert read_cursor(log.storage, "files") == Cursor(3, "20260101T052000Z-00000000000000aa", {"orders": 1})
    format_said = json.loads((tmp_path / "format.json").read_text())
    assert format_said == {"format": 2, "read_min": 2, "write_min": 2}, "an older release must say what it lacks"


def test_where_no_links_are_told_every_slot_is_looked_at(tmp_path: Path) -> None:
    """As in a log of format 1, here with quarantine files in its first and third decision only."""
    log = open_log(tmp_path)
    bad = dataclasses.replace(decided_file("0-0", 0, 0, 1), kind=FileKind.QUARANTINE)
    for number, files in enumerate(([bad], [], [bad], [])):
        ranges = decided_range(0, number or None, number, number + 1)
        decision = load(f"w{number}", {"orders": topic_decision(ranges, files=files, new=not number)}, slot=number + 1)
        body = to_json(decision)
        document = {"body": body, "sha256": hashlib.sha256(canonical(body)).hexdigest()}
        log.storage.put_if_absent(slot_path(number + 1), canonical(document) + b"\n")
    state = log.read_state()
    assert (state.topics["orders"].slot, state.topics["orders"].quarantine_slot) == (4, 3)
    assert [one.value.slot for one in log.back("orders", state)] == [4, 3, 2, 1]
    assert [one.slot for one in decisions_of(log, "orders", state, 1)] == [2, 3, 4]


def test_a_decision_says_where_its_topics_spoke_before(tmp_path: Path) -> None:
    log = filled(tmp_path, 2)
    offered = log.offer(
        load(
            "w2",
            {
                "orders": topic_decision(decided_range(0, 2, 2, 3)),
                "users": topic_decision(decided_range(0, None, 0, 4), new=True, table="users"),
            },
        )
    )
    assert offered.decision is not None
    found = {topic: (one.slot_before, one.quarantine_slot_before) for topic, one in offered.decision.topics.items()}
    assert found == {"orders": (2, 0), "users": (0, 0)}
    assert offered.decision.previous == log.sha256(2)


def test_a_topic_is_found_without_reading_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, 1)
    for number in range(30):
        before = number or None
        one = topic_decision(decided_range(0, before, number, number + 1), new=number == 0, table="users")
        log.offer(load(f"u{number}", {"users": one}))
    log.offer(load("w1", {"orders": topic_decision(decided_range(0, 1, 1, 2))}))
    read: list[str] = []
    plain_read = LocalSlots.read
    monkeypatch.setattr(LocalSlots, "read", lambda storage, path: read.append(path) or plain_read(storage, path))
    state = log.read_state()
    read.clear()
    found = decisions_of(log, "orders", state)
    assert [one.slot for one in found] == [1, 32]
    assert {path for path in read if path.startswith("log/")} == {slot_path(1)}, "the newest has been read"


def test_a_topic_that_conflicts_is_left_out_and_the_others_are_decided(tmp_path: Path) -> None:
    log = filled(tmp_path, 2)
    offered = log.offer(
        load(
            "late",
            {
                "orders": topic_decision(decided_range(0, 1, 1, 9)),
                "users": topic_decision(decided_range(0, None, 0, 4), new=True, table="users"),
            },
        )
    )
    assert offered.decision is not None and list(offered.decision.topics) == ["users"]
    assert offered.refused["orders"].rule is ConflictRule.OFFSETS_DECIDED
    state = open_log(tmp_path).read_state()
    assert (state.topics["orders"].partitions[0].next_offset, state.topics["users"].partitions[0].next_offset) == (2, 4)


def test_voided_work_is_refused_as_a_whole(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    log.offer(clean("c1", "late"))
    offered = log.offer(load("late", {"users": topic_decision(new=True, table="users")}))
    assert (offered.decision, offered.conflict and offered.conflict.rule) == (None, ConflictRule.WORK_VOIDED)


def test_a_decision_after_another_than_it_was_made_for_stops(tmp_path: Path) -> None:
    filled(tmp_path / "one", 3)
    other = filled(tmp_path / "two", 1)
    other.offer(clean("c", "x"))
    mixed = tmp_path / "one" / slot_path(2)
    mixed.write_bytes((tmp_path / "two" / slot_path(2)).read_bytes())
    with pytest.raises(BadDecision) as refused:
        open_log(tmp_path / "one").read_state()
    assert refused.value.path == str(tmp_path / "one" / slot_path(3))


@pytest.mark.parametrize("kept", [1, 2])
def test_an_older_copy_of_the_log_that_was_put_back_is_noticed(tmp_path: Path, kept: int) -> None:
    """By a driver that has read the longer one: `kept` slots are left, and perhaps others have followed."""
    log = filled(tmp_path, 3)
    for slot in range(kept + 1, 4):
        (tmp_path / slot_path(slot)).unlink()
    with pytest.raises(LogReplaced, match=slot_path(3)):
        log.offer(load("w3", {"orders": topic_decision(decided_range(0, 3, 3, 5))}))
    assert open_log(tmp_path).head() == kept
    other = open_log(tmp_path)
    for number in range(kept, 4):
        other.offer(clean(f"c{number}", "x"))
    with pytest.raises(LogReplaced):
        log.read_state()


def test_a_checkpoint_of_another_log_is_not_believed(tmp_path: Path) -> None:
    expected = filled(tmp_path / "one", CHECKPOINT_EVERY + 1).read_state()
    other = open_log(tmp_path / "two")
    for number in range(CHECKPOINT_EVERY + 1):
        other.offer(clean(f"c{number}", "x"))
    path = checkpoint_path(CHECKPOINT_EVERY)
    (tmp_path / "one" / path).write_bytes((tmp_path / "two" / path).read_bytes())
    assert open_log(tmp_path / "one").read_state() == expected


def test_old_checkpoints_go(tmp_path: Path) -> None:
    filled(tmp_path, 4 * CHECKPOINT_EVERY)
    names = sorted(path.name for path in (tmp_path / "checkpoint").iterdir())
    assert names == [f"{slot:09d}.json" for slot in (3 * CHECKPOINT_EVERY, 4 * CHECKPOINT_EVERY)]


def test_a_start_that_came_too_late_is_left_out_and_the_others_are_decided(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    late, fine = StartOffset("orders", 0, 9), StartOffset("clicks", 0, 9)
    offer = Decision(0, DecisionKind.OFFSETS, "op", 1, "b", {}, frozenset(), reason="why", starts=(late, fine))
    offered = log.offer(offer)
    assert offered.decision is not None and offered.decision.starts == (fine,)
    assert list(offered.refused) == ["orders"] and offered.state.starts == {"clicks": {0: 9}}
    none = log.offer(dataclasses.replace(offer, work_id="op2", starts=(late,)))
    assert none.decision is None and none.conflict is not None
    assert open_log(tmp_path).read_state() == offered.state
