"""Slots, races, lost replies, damage, checkpoints and hints of the decision log."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headrace.loader.decide.conflict import ConflictRule
from headrace.loader.decide.decision_log import CHECKPOINT_EVERY, DecisionLog, checkpoint_path, slot_path
from headrace.loader.decide.storage import LocalStorage
from headrace.loader.errors import BadDecision, StorageError, UnsupportedFormat
from loader_samples import clean, decided_range, load, topic_decision


def open_log(root: Path) -> DecisionLog:
    log = DecisionLog(LocalStorage(root))
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
    assert [decision.work_id for decision in fresh.decisions(1, 3)] == ["w1", "w2"]


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
    put = LocalStorage.put_if_absent

    def overtaken(storage: LocalStorage, path: str, content: bytes) -> bool:
        monkeypatch.setattr(LocalStorage, "put_if_absent", put)
        fast.offer(theirs)
        return put(storage, path, content)

    monkeypatch.setattr(LocalStorage, "put_if_absent", overtaken)
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
    put = LocalStorage.put_if_absent

    def reply_lost(storage: LocalStorage, path: str, content: bytes) -> bool:
        monkeypatch.setattr(LocalStorage, "put_if_absent", put)
        put(storage, path, content)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(LocalStorage, "put_if_absent", reply_lost)
    offered = log.offer(load("w1", {"orders": topic_decision(decided_range(0, 1, 1, 5))}))
    assert offered.decision is not None
    assert (offered.decision.work_id, offered.decision.slot) == ("w1", 2)
    assert open_log(tmp_path).head() == 2


def test_a_storage_that_keeps_failing_ends_the_offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, 1)
    offer = load("w1", {"orders": topic_decision(decided_range(0, 1, 1, 5))})
    monkeypatch.setattr(LocalStorage, "put_if_absent", lambda *_: False)
    with pytest.raises(StorageError, match="refused as taken but cannot be found"):
        log.offer(offer)

    def fail(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LocalStorage, "put_if_absent", fail)
    with pytest.raises(OSError, match="No space left"):
        log.offer(offer)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "not JSON"), (b'{"body": {', "not JSON"), (b'{"body":{},"sha256":"0"}', "checksum is wrong")],
)
def test_a_damaged_slot_stops_and_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    filled(tmp_path, 3)
    path = tmp_path / slot_path(2)
    path.write_bytes(content)
    with pytest.raises(BadDecision, match=reason) as caught:
        open_log(tmp_path).read_state()
    assert caught.value.path == str(path)


def test_a_missing_slot_before_the_hint_stops(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    (tmp_path / slot_path(2)).unlink()
    with pytest.raises(BadDecision, match=r"000000002\.json is damaged: the file is missing"):
        open_log(tmp_path).read_state()


def test_a_copied_slot_stops(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    (tmp_path / slot_path(3)).write_bytes((tmp_path / slot_path(2)).read_bytes())
    with pytest.raises(BadDecision, match="it says it is slot 2"):
        open_log(tmp_path).read_state()


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
    (tmp_path / "format.json").write_text('{"format":2,"read_min":1,"write_min":2}')
    with pytest.raises(UnsupportedFormat, match="format 2 or newer"):
        open_log(tmp_path)
    DecisionLog(LocalStorage(tmp_path)).check_format(writing=False)


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
