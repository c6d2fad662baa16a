"""Packing of older slots: nothing is lost, doubled or changed by it, whoever reads, writes or is killed meanwhile."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.loader.commit.decision_log import DecisionLog
from headrace.loader.commit.slots import LOOSE_SLOTS_MIN, PACK_SLOTS, Slots, archive_path, slot_path
from headrace.loader.errors import BadDecision
from headrace.loader.storage.local.slots import LocalSlots
from support.loader.loader_samples import clean, decided_range, decisions_of, load, topic_decision

HEAD = 2 * PACK_SLOTS + LOOSE_SLOTS_MIN + 7


class Killed(BaseException):
    """As `kill -9` would: nothing catches it."""


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of `HEAD` decisions of one topic, one offset each; not to be changed."""
    root = tmp_path_factory.mktemp("log")
    log = DecisionLog(LocalSlots(root))
    log.open()
    for number in range(HEAD):
        one = topic_decision(decided_range(0, number or None, number, number + 1), new=number == 0)
        assert log.offer(load(f"w{number}", {"orders": one})).decision is not None
    return root


@pytest.fixture
def root(decided: Path, tmp_path: Path) -> Path:
    return shutil.copytree(decided, tmp_path / "log")


def contents(root: Path) -> list[bytes | None]:
    slots = Slots(LocalSlots(root))
    return [slots.read(slot) for slot in range(1, HEAD + 2)]


def fresh_state(root: Path) -> Any:
    """Folded from the decisions alone."""
    shutil.rmtree(root / "checkpoint", ignore_errors=True)
    (root / "head.json").unlink(missing_ok=True)
    return DecisionLog(LocalSlots(root)).read_state()


def test_packed_slots_are_the_same_byte_for_byte(root: Path) -> None:
    before, state = contents(root), fresh_state(root)
    assert Slots(LocalSlots(root)).pack(HEAD) == 2 * PACK_SLOTS
    assert sorted(path.name for path in (root / "archive").iterdir()) == ["000000100.jsonl", "000000200.jsonl"]
    assert len(list((root / "log").iterdir())) == HEAD - 2 * PACK_SLOTS
    assert contents(root) == before
    assert fresh_state(root) == state
    assert Slots(LocalSlots(root)).pack(HEAD) == 0


def test_the_newest_slots_stay_files(root: Path) -> None:
    assert Slots(LocalSlots(root)).pack(PACK_SLOTS + LOOSE_SLOTS_MIN - 1) == 0
    assert Slots(LocalSlots(root)).pack(PACK_SLOTS + LOOSE_SLOTS_MIN) == PACK_SLOTS


def test_a_writer_that_slept_since_before_the_packing_is_refused(root: Path) -> None:
    """The name of the slot that it waits to put is free again."""
    slots = Slots(LocalSlots(root))
    before = slots.read(7)
    late = Slots(LocalSlots(root))
    slots.pack(HEAD)
    assert late.put(7, b"late\n") == before
    assert not (root / slot_path(7)).exists()
    assert late.read(7) == Slots(LocalSlots(root)).read(7) == before


def test_what_a_writer_left_that_was_killed_before_it_looked_counts_for_nothing(root: Path) -> None:
    before = contents(root)
    Slots(LocalSlots(root)).pack(HEAD)
    (root / slot_path(7)).write_bytes(b"late\n")
    assert contents(root) == before
    Slots(LocalSlots(root)).pack(HEAD)
    assert contents(root) == before


@pytest.mark.parametrize("answer", [lambda slots: slots.read(7), lambda slots: slots.put(7, b"mine\n")])
def test_what_a_writer_that_slept_puts_while_somebody_looks_counts_for_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[Slots], bytes | None]
) -> None:
    """The slot is packed, and its name taken again, just after the first look of whoever reads it."""
    before, plain = contents(root)[6], LocalSlots.read

    def read(storage: LocalSlots, name: str) -> bytes | None:
        found = plain(storage, name)
        monkeypatch.setattr(LocalSlots, "read", plain)
        Slots(LocalSlots(root)).pack(HEAD)
        (root / slot_path(7)).write_bytes(b"late\n")
        return found

    monkeypatch.setattr(LocalSlots, "read", read)
    assert answer(Slots(LocalSlots(root))) == before


@pytest.mark.parametrize("operation", ["put_if_absent", "remove", "read"])
@pytest.mark.parametrize("after", [True, False])
def test_a_packing_that_is_killed_anywhere_is_finished_by_the_next(
    root: Path, monkeypatch: pytest.MonkeyPatch, operation: str, after: bool
) -> None:
    """At the first, some middle and the last call of each operation, before and after it is done."""
    before = contents(root)
    plain: Callable[..., Any] = getattr(LocalSlots, operation)
    for nth in (1, 2, 3, 57, 150, 199, 200, 250, 399):
        calls = 0

        def killed(storage: LocalSlots, *arguments: Any, nth: int = nth) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth and not after:
                raise Killed
            answer = plain(storage, *arguments)
            if calls == nth:
                raise Killed
            return answer

        copy = shutil.copytree(root, root.parent / f"copy-{nth}")
        monkeypatch.setattr(LocalSlots, operation, killed)
        with contextlib.suppress(Killed):
            Slots(LocalSlots(copy)).pack(HEAD)
        monkeypatch.setattr(LocalSlots, operation, plain)
        assert contents(copy) == before, f"{operation} {nth}"
        Slots(LocalSlots(copy)).pack(HEAD)
        assert contents(copy) == before
        assert len(list((copy / "log").iterdir())) == HEAD - 2 * PACK_SLOTS
        shutil.rmtree(copy)


def test_a_damaged_slot_is_not_packed_and_no_other_of_its_pack(root: Path) -> None:
    path = root / slot_path(150)
    path.write_bytes(path.read_bytes().replace(b'"end":150', b'"end":151'))
    assert Slots(LocalSlots(root)).pack(HEAD) == PACK_SLOTS
    with pytest.raises(BadDecision) as refused:
        fresh_state(root)
    assert refused.value.path == str(path)


def test_a_pack_of_large_decisions_stays_as_it_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (
        sum((root / slot_path(slot)).stat().st_size for slot in range(end - PACK_SLOTS + 1, end + 1))
        for end in (PACK_SLOTS, 2 * PACK_SLOTS)
    )
    assert first != second
    before = contents(root)
    monkeypatch.setattr("headrace.loader.commit.slots.ARCHIVE_BYTES_MAX", min(first, second))
    assert Slots(LocalSlots(root)).pack(HEAD) == PACK_SLOTS
    monkeypatch.setattr("headrace.loader.commit.slots.ARCHIVE_BYTES_MAX", max(first, second) - 1)
    assert Slots(LocalSlots(root)).pack(HEAD) == 0
    assert contents(root) == before


def test_a_cut_archive_stops_and_is_named(root: Path) -> None:
    Slots(LocalSlots(root)).pack(HEAD)
    path = root / archive_path(1)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(BadDecision) as refused:
        fresh_state(root)
    assert refused.value.path == str(path)
    assert re.findall(r"\d+", refused.value.reason) == ["99", "100"]
    path.write_bytes(b"".join(lines).replace(b'"end":8', b'"end":9'))
    with pytest.raises(BadDecision) as refused:
        fresh_state(root)
    assert refused.value.path == str(path)


def test_readers_writers_and_packers_at_once(root: Path) -> None:
    """Everybody sees every decision once and in order, and each offer takes a slot of its own."""
    failures: list[BaseException] = []
    taken: list[int] = []

    def work(me: int) -> None:
        try:
            log = DecisionLog(LocalSlots(root))
            for number in range(60):
                if me == 0:
                    state = log.read_state()
                    assert [one.slot for one in decisions_of(log, "orders", state)][:3] == [1, 2, 3]
                elif me == 1:
                    log.slots.pack(log.read_state().slot)
                else:
                    offered = log.offer(clean(f"c{me}-{number}", "x"))
                    assert offered.decision is not None
                    taken.append(offered.decision.slot)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(taken) == list(range(HEAD + 1, HEAD + 121))
    assert fresh_state(root).slot == HEAD + 120
