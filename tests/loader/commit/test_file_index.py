"""The index of files against a plain fold of all decisions, however its documents were cut, lost or put back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.loader.apply.index import IndexFollower
from headrace.loader.commit.bucket_index import (
    DayIndex,
    IndexedBucket,
    apply,
    by_day,
    dead_slots,
    generation_at,
    live_at,
    without_dead,
)
from headrace.loader.commit.decision import BucketRewrite, DecidedFile, Decision, DecisionKind, TopicDecision
from headrace.loader.commit.decision_log import DecisionLog
from headrace.loader.commit.document import read_document
from headrace.loader.commit.file_index import FileIndex, index_folder
from headrace.loader.work_unit import FileKind, FileRange
from support.loader.loader_samples import BUCKET, decided_file, decisions_of, load, rewrite, step_of, topic_decision

KINDS = (FileKind.DATA, FileKind.QUARANTINE)
BUCKETS = ("dt=2026-01-01/hr=05", "dt=2026-01-01/hr=06", "dt=2026-01-02/hr=05", "dt=2026-01-03")
TOPIC = "orders"
DAYS = index_folder(TOPIC) + "/days.json"
DAY = index_folder(TOPIC) + "/data/dt=2026-01-01.json"


class MemoryStorage:
    """A `SlotStorage` without a disk; `reads` are the names that were read."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.reads: list[str] = []

    def prepare(self) -> None:
        pass

    def keep(self, path: str) -> None:
        assert path in self.files

    def put_if_absent(self, path: str, content: bytes) -> bool:
        return self.files.setdefault(path, content) is content

    def replace(self, path: str, content: bytes, *, forced: bool = True) -> None:
        self.files[path] = content

    def read(self, path: str) -> bytes | None:
        self.reads.append(path)
        return self.files.get(path)

    def exists(self, path: str) -> bool:
        return path in self.files

    def children(self, path: str) -> tuple[str, ...]:
        start = path + "/"
        return tuple(sorted({name.removeprefix(start).split("/")[0] for name in self.files if name.startswith(start)}))

    def remove(self, path: str) -> None:
        self.files.pop(path, None)

    def sweep(self, now_ms: int, age_ms: int) -> None:
        pass

    def describe(self, path: str) -> str:
        return path


class Warehouse:
    """A log in memory, with what its decisions plainly add up to: `live` by slot, kind and bucket."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.log = DecisionLog(self.storage)
        self.log.open()
        self.live: dict[int, dict[tuple[FileKind, str], frozenset[str]]] = {0: {}}
        self.generations: dict[int, dict[tuple[FileKind, str], int]] = {0: {}}
        self.retired = 0

    @property
    def head(self) -> int:
        return max(self.live)

    def decide(self, topic: str, decided: TopicDecision, kind: DecisionKind = DecisionKind.LOAD) -> Decision:
        known = self.log.read_state().topics.get(topic)
        generation = known.generation if known else 0
        new = topic_decision(new=known is None, table=topic)
        decided = dataclasses.replace(new, files=decided.files, rewrites=decided.rewrites, generation_before=generation)
        return self._offer({topic: decided}, kind)

    def retire(self, slots: Iterable[int]) -> None:
        """As whoever deleted the replaced files says so, in a decision of no topic."""
        self._offer({}, DecisionKind.CLEAN, frozenset(slots))
        self.retired = max([self.retired, *slots])

    def _offer(
        self, topics: dict[str, TopicDecision], kind: DecisionKind, retired: frozenset[int] = frozenset()
    ) -> Decision:
        work = f"work-{self.head + 1}"
        offer = dataclasses.replace(load(work, topics), kind=kind, retired=retired)
        offered = self.log.offer(offer)
        assert offered.decision is not None, offered.conflict
        self._fold(offered.decision)
        return offered.decision

    def _fold(self, decision: Decision) -> None:
        live, generations = dict(self.live[self.head]), dict(self.generations[self.head])
        decided = decision.topics.get(TOPIC)
        for one in decided.rewrites if decided else ():
            assert decided is not None
            live[one.kind, one.bucket] = live.get((one.kind, one.bucket), frozenset()) - frozenset(one.replaced)
            generations[one.kind, one.bucket] = decided.generation_before + 1
        for file in decided.files if decided else ():
            live[file.kind, file.bucket] = live.get((file.kind, file.bucket), frozenset()) | {file.name}
        self.live[decision.slot], self.generations[decision.slot] = live, generations

    def check(self, index: FileIndex) -> None:
        """Every answer, for every slot since files were last deleted."""
        for kind in KINDS:
            for bucket in BUCKETS:
                for slot in range(self.retired, self.head + 1):
                    found = index.live(TOPIC, kind, bucket, slot)
                    names = [file.name for file in found]
                    assert len(set(names)) == len(names)
                    assert set(names) == self.live[slot].get((kind, bucket), frozenset())
                for slot in range(self.head + 1):
                    assert index.generation_at(TOPIC, kind, bucket, slot) == self.generations[slot].get(
                        (kind, bucket), 0
                    )
            days = {
                bucket.split("/")[0] for (one, bucket), names in self.live[self.head].items() if one is kind and names
            }
            assert days <= set(index.days(TOPIC, kind))
            assert list(index.days(TOPIC, kind)) == sorted(index.days(TOPIC, kind))


def file(kind: FileKind, bucket: str, number: int) -> DecidedFile:
    return DecidedFile(kind, bucket, f"0-{number}.avro", "t", 10, "00" * 32, 3, (FileRange(0, number, number + 2, 3),))


def added(*places: tuple[FileKind, str]) -> TopicDecision:
    return dataclasses.replace(topic_decision(), files=tuple(file(*place, n) for n, place in enumerate(places)))


places = st.tuples(st.sampled_from(KINDS), st.sampled_from(BUCKETS))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(places, max_size=3)),
        st.tuples(
            st.just("rewrite"),
            st.lists(places, min_size=1, max_size=2, unique=True),
            st.integers(0, 2),
            st.integers(0, 7),
        ),
        st.tuples(st.just("retire"), st.integers(0, 3)),
        st.tuples(st.just("other")),
        st.tuples(st.just("follow"), st.integers(0, 12)),
        st.tuples(st.just("lose"), st.integers(0, 99)),
        st.tuples(st.just("cut"), st.integers(0, 99), st.integers(0, 400)),
        st.tuples(st.just("put back"), st.integers(0, 99), st.integers(0, 99)),
        st.tuples(st.just("crash"), st.integers(0, 3)),
        st.tuples(st.just("swap"), st.integers(0, 99), st.integers(0, 99)),
        st.tuples(st.just("check")),
    ),
    max_size=25,
)  # fmt: skip


class Crash(Exception):
    pass


class Play:
    """Carries the steps out. `old` are all contents that any document ever had, which may come back."""

    def __init__(self) -> None:
        self.world = Warehouse()
        self.storage = self.world.storage
        self.files = self.storage.files
        self.old: list[tuple[str, bytes]] = []
        self.world.decide(TOPIC, added())

    def take(self, step: Sequence[object]) -> None:
        word, *values = step
        getattr(self, "_" + str(word).replace(" ", "_"))(*values)
        self.old += [item for item in self.files.items() if item[0].startswith("index/") and item not in self.old]

    def names(self) -> list[str]:
        return sorted(name for name in self.files if name.startswith("index/"))

    def _add(self, where: list[tuple[FileKind, str]]) -> None:
        self.world.decide(TOPIC, added(*where))

    def _rewrite(self, where: list[tuple[FileKind, str]], replaced: int, new: int) -> None:
        live = self.world.live[self.world.head]
        rewrites = tuple(
            BucketRewrite(kind, bucket, tuple(sorted(live.get((kind, bucket), ())))[replaced:], 0, 0)
            for kind, bucket in where
        )
        files = added(*(place for bit, place in enumerate(where) if new & 1 << bit)).files
        self.world.decide(
            TOPIC, dataclasses.replace(topic_decision(), files=files, rewrites=rewrites), DecisionKind.COMPACT
        )

    def _retire(self, kept: int) -> None:
        slots = sorted(self.world.log.read_state().rewrites)
        self.world.retire(slots[: max(0, len(slots) - kept)])

    def _other(self) -> None:
        self.world.decide("payments", added((FileKind.DATA, BUCKET)))

    def _follow(self, given: int) -> None:
        """With the decisions of the last slots, as a cursor of any age would bring them."""
        state = self.world.log.read_state()
        since = max(0, state.slot - given)
        decisions = decisions_of(self.world.log, TOPIC, state, since)
        step = step_of(state, TOPIC, decisions, since=since)
        IndexFollower(FileIndex(self.world.log)).apply(step)

    def _lose(self, number: int) -> None:
        for name in self.names()[number : number + 1]:
            del self.files[name]

    def _cut(self, number: int, length: int) -> None:
        for name in self.names()[number : number + 1]:
            self.files[name] = self.files[name][:length]

    def _put_back(self, number: int, which: int) -> None:
        for name, content in self.old[which % max(1, len(self.old)) :][:1]:
            self.files[name] = content

    def _swap(self, one: int, other: int) -> None:
        names = self.names()
        if names:
            self.files[names[one % len(names)]] = self.files[names[other % len(names)]]

    def _crash(self, writes: int) -> None:
        """Follows and is killed after so many documents."""
        storage, left = self.storage, [writes]
        replace = MemoryStorage.replace

        def dying(path: str, content: bytes, *, forced: bool = True) -> None:
            if path.startswith("index/"):
                if not left[0]:
                    raise Crash
                left[0] -= 1
            replace(storage, path, content)  # type: ignore[arg-type]

        storage.replace = dying  # type: ignore[method-assign]
        try:
            self._follow(3)
        except Crash:
            pass
        finally:
            del storage.replace

    def _check(self) -> None:
        log = DecisionLog(self.storage)
        log.read_state()
        self.world.check(FileIndex(log))


@given(steps)
def test_whatever_became_of_its_documents_it_answers_as_a_plain_fold(script: list[tuple[object, ...]]) -> None:
    play = Play()
    for step in script:
        play.take(step)
    play.take(("check",))
    mending = FileIndex(play.world.log, mends=True)
    play.world.log.read_state()
    play.world.check(mending)
    play.take(("follow", 0))
    play.take(("check",))


@pytest.fixture
def world() -> Warehouse:
    """Two days of one topic, followed."""
    world = Warehouse()
    world.decide(TOPIC, added((FileKind.DATA, BUCKETS[0]), (FileKind.DATA, BUCKETS[2])))
    world.decide("payments", added((FileKind.DATA, BUCKET)))
    world.decide(TOPIC, added((FileKind.DATA, BUCKETS[0])))
    FileIndex(world.log).bring_up(TOPIC)
    return world


def slots_read(world: Warehouse, ask: Callable[[FileIndex], object]) -> set[int]:
    """The decisions that an answer parsed."""
    log = DecisionLog(world.storage)
    log.read_state()
    read: list[int] = []
    document = log.document
    log.document = lambda slot: read.append(slot) or document(slot)  # type: ignore[method-assign,assign,func-returns-value]
    ask(FileIndex(log))
    return set(read)


def test_a_day_is_answered_from_its_document_alone(world: Warehouse) -> None:
    storage = world.storage

    def ask(index: FileIndex) -> None:
        storage.reads.clear()
        for _ in range(2):
            assert len(index.live(TOPIC, FileKind.DATA, BUCKETS[0])) == 2
            assert index.live(TOPIC, FileKind.DATA, "dt=2030-01-01/hr=00") == ()
        documents = [name for name in storage.reads if name.startswith("index/")]
        assert documents == [DAYS, DAY]

    assert slots_read(world, ask) == set()


def test_documents_that_are_behind_cost_the_decisions_since(world: Warehouse) -> None:
    world.decide(TOPIC, added((FileKind.DATA, BUCKETS[0])))
    assert slots_read(world, lambda index: world.check(index)) == {4}


@pytest.mark.parametrize(
    "damage",
    [
        lambda files: files.pop(DAY),
        lambda files: files.pop(DAYS),
        lambda files: files.update({DAY: files[DAY].replace(b'"length":10', b'"length":11')}),
        lambda files: files.update({DAY: files[index_folder(TOPIC) + "/data/dt=2026-01-02.json"]}),
        lambda files: files.update({DAYS: b"{}"}),
    ],
)
def test_what_cannot_be_trusted_is_folded_from_all_decisions_of_the_topic(
    world: Warehouse, damage: Callable[[dict[str, bytes]], object]
) -> None:
    storage = world.storage
    whole = dict(storage.files)
    damage(storage.files)
    damaged = dict(storage.files)
    assert slots_read(world, world.check) == {1, 3}
    assert storage.files == damaged, "a reader that was not asked to mend writes nothing"
    index = FileIndex(world.log, mends=True)
    world.check(index)
    assert storage.files == whole or DAYS not in damaged or damaged[DAYS] == b"{}"
    index.bring_up(TOPIC)
    assert storage.files == whole


def test_an_index_of_another_log_is_noticed(world: Warehouse) -> None:
    other = Warehouse()
    for bucket in (BUCKETS[1], BUCKET, BUCKETS[1]):
        other.decide("payments" if bucket == BUCKET else TOPIC, added((FileKind.DATA, bucket)))
    other.storage.files |= {name: content for name, content in world.storage.files.items() if "index/" in name}
    other.check(FileIndex(other.log))
    FileIndex(other.log).bring_up(TOPIC)
    assert slots_read(other, other.check) == set()


def test_a_topic_that_was_forgotten_and_came_back_has_only_its_new_files(world: Warehouse) -> None:
    """Its chain begins anew, so that what an index says of the time before is none of it."""
    again = world.log.read_state().topics[TOPIC]
    decision = world.decide(TOPIC, added((FileKind.DATA, BUCKETS[1])))
    content = world.log.decision(decision.slot).topics[TOPIC]
    changed = dataclasses.replace(decision, topics={TOPIC: dataclasses.replace(content, slot_before=0)})
    log = world.log
    log.back = lambda topic, state, since=0: iter(  # type: ignore[method-assign,misc,assign]
        [dataclasses.replace(DecisionLog.document(log, decision.slot), value=changed)]
    )
    index = FileIndex(log)
    assert again.slot == 3
    assert index.days(TOPIC, FileKind.DATA) == ("dt=2026-01-01",)
    assert index.live(TOPIC, FileKind.DATA, BUCKETS[0]) == ()
    assert len(index.live(TOPIC, FileKind.DATA, BUCKETS[1])) == 1


def test_a_decision_rewrites_the_documents_of_its_own_days(world: Warehouse) -> None:
    storage = world.storage
    before = dict(storage.files)
    decision = world.decide(TOPIC, added((FileKind.DATA, BUCKETS[2]), (FileKind.QUARANTINE, BUCKETS[2])))
    storage.reads.clear()
    FileIndex(world.log).bring_up(TOPIC, (decision,))
    folder = index_folder(TOPIC)
    written = {
        name for name, content in storage.files.items() if name.startswith("index/") and before.get(name) != content
    }
    assert written == {DAYS, f"{folder}/data/dt=2026-01-02.json", f"{folder}/quarantine/dt=2026-01-02.json"}
    assert [name for name in storage.reads if name.startswith("index/")] == [DAYS, f"{folder}/data/dt=2026-01-02.json"]


def test_files_that_were_deleted_leave_the_index(world: Warehouse) -> None:
    name = next(iter(world.live[1][FileKind.DATA, BUCKETS[0]]))
    world.decide(TOPIC, rewrite(name, bucket=BUCKETS[0]), DecisionKind.COMPACT)
    FileIndex(world.log).bring_up(TOPIC)
    day = FileIndex(world.log).day(TOPIC, FileKind.DATA, "dt=2026-01-01")
    assert dead_slots(day) == {4}
    assert [one.until for one in live_at(day.buckets[BUCKETS[0]], 3)] == [4, 0]
    world.retire({4})
    assert dead_slots(FileIndex(world.log).day(TOPIC, FileKind.DATA, "dt=2026-01-01")) == frozenset()
    on_disk = read_document(world.storage.files[DAY], DayIndex).value
    assert dead_slots(on_disk) == {4}, "until somebody writes it"
    assert dead_slots(without_dead(on_disk, {3})) == {4}
    assert dead_slots(without_dead(on_disk, {4})) == frozenset()
    assert len(without_dead(on_disk, {4}).buckets[BUCKETS[0]].files) == 1


def test_generations_of_a_topic_that_was_never_rewritten_need_no_document(world: Warehouse) -> None:
    storage = world.storage
    storage.reads.clear()
    assert FileIndex(world.log).generation_at(TOPIC, FileKind.DATA, BUCKET, 3) == 0
    assert FileIndex(world.log).generation_at("unknown", FileKind.DATA, BUCKET, 3) == 0
    assert storage.reads == []


def test_a_decision_is_applied_once_and_in_parts() -> None:
    decided = dataclasses.replace(
        topic_decision(files=[decided_file("a", 0, 0, 5), decided_file("b", 0, 5, 9, "dt=2026-01-02/hr=00")]),
        rewrites=(BucketRewrite(FileKind.DATA, BUCKET, ("old",), 3, 300),),
        generation_before=4,
    )
    day = DayIndex(FileKind.DATA, "dt=2026-01-01")
    assert set(by_day(decided)) == {(FileKind.DATA, "dt=2026-01-01"), (FileKind.DATA, "dt=2026-01-02")}
    once = apply(day, decided, 7, "ab")
    assert once == apply(day, by_day(decided)[FileKind.DATA, "dt=2026-01-01"], 7, "ab")
    assert apply(once, decided, 7, "ab") is once
    assert apply(once, decided, 6, "cd") is once
    assert apply(once, topic_decision(), 8, "cd") is once
    assert (once.slot, once.sha256, list(once.buckets)) == (7, "ab", [BUCKET])
    assert [generation_at(once.buckets[BUCKET], slot) for slot in (6, 7, 8)] == [0, 5, 5]
    assert generation_at(IndexedBucket(((3, 1), (9, 2))), 8) == 1
