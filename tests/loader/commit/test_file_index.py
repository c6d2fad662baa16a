"""The index of files equals a plain fold of all commits, even if its documents were truncated, lost or replaced by
older ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.loader.apply.chain import IndexApplier
from headrace.loader.commit.commit import Commit, CommitKind, CommittedFile, TimePartitionRewrite, TopicCommit
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.document import read_document
from headrace.loader.commit.file_index import FileIndex, index_directory
from headrace.loader.commit.partition_index import (
    DayIndex,
    IndexedTimePartition,
    apply,
    by_day,
    commits_with_removed_files,
    generation_at,
    live_at,
    without_files_removed_by,
)
from headrace.loader.work_unit import FileKind, FileRange
from support.loader.loader_samples import (
    TIME_PARTITION,
    commits_of,
    committed_file,
    load,
    rewrite,
    step_of,
    topic_commit,
)

KINDS = (FileKind.DATA, FileKind.QUARANTINE)
TIME_PARTITIONS = ("dt=2026-01-01/hr=05", "dt=2026-01-01/hr=06", "dt=2026-01-02/hr=05", "dt=2026-01-03")
TOPIC = "orders"
DAYS = index_directory(TOPIC) + "/days.json"
DAY = index_directory(TOPIC) + "/data/dt=2026-01-01.json"


class MemoryStorage:
    """A `CommitStorage` without a disk. `reads` are the names that were read."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.reads: list[str] = []

    def prepare(self) -> None:
        pass

    def persist(self, path: str) -> None:
        assert path in self.files

    def put_if_absent(self, path: str, content: bytes) -> bool:
        return self.files.setdefault(path, content) is content

    def replace(self, path: str, content: bytes, *, fsynced: bool = True) -> None:
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

    def delete_temporary_files(self, now_ms: int, age_ms: int) -> None:
        pass

    def describe(self, path: str) -> str:
        return path


class Warehouse:
    """A log in memory, with the expected result of its commits: `live` by commit number, kind and time partition."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.log = CommitLog(self.storage)
        self.log.open()
        self.live: dict[int, dict[tuple[FileKind, str], frozenset[str]]] = {0: {}}
        self.generations: dict[int, dict[tuple[FileKind, str], int]] = {0: {}}
        self.retired = 0

    @property
    def head(self) -> int:
        return max(self.live)

    def add_commit(self, topic: str, committed: TopicCommit, kind: CommitKind = CommitKind.LOAD) -> Commit:
        known = self.log.read_state().topics.get(topic)
        generation = known.generation if known else 0
        new = topic_commit(new=known is None, table=topic)
        committed = dataclasses.replace(
            new, files=committed.files, rewrites=committed.rewrites, generation_before=generation
        )
        return self._try_commit({topic: committed}, kind)

    def retire(self, commits: Iterable[int]) -> None:
        """Commits that the replaced files have been deleted. Such a commit has no topic."""
        self._try_commit({}, CommitKind.CLEAN, frozenset(commits))
        self.retired = max([self.retired, *commits])

    def _try_commit(
        self, topics: dict[str, TopicCommit], kind: CommitKind, retired: frozenset[int] = frozenset()
    ) -> Commit:
        run_id = f"work-{self.head + 1}"
        proposal = dataclasses.replace(load(run_id, topics), kind=kind, retired=retired)
        commit_result = self.log.try_commit(proposal)
        assert commit_result.commit is not None, commit_result.conflict
        self._fold(commit_result.commit)
        return commit_result.commit

    def _fold(self, commit: Commit) -> None:
        live, generations = dict(self.live[self.head]), dict(self.generations[self.head])
        committed = commit.topics.get(TOPIC)
        for one in committed.rewrites if committed else ():
            assert committed is not None
            live[one.kind, one.time_partition] = live.get((one.kind, one.time_partition), frozenset()) - frozenset(
                one.replaced
            )
            generations[one.kind, one.time_partition] = committed.generation_before + 1
        for file in committed.files if committed else ():
            live[file.kind, file.time_partition] = live.get((file.kind, file.time_partition), frozenset()) | {file.name}
        self.live[commit.commit_number], self.generations[commit.commit_number] = live, generations

    def check(self, index: FileIndex) -> None:
        """Checks all results of the index, for every commit number since files were last deleted."""
        for kind in KINDS:
            for time_partition in TIME_PARTITIONS:
                for commit_number in range(self.retired, self.head + 1):
                    found = index.live(TOPIC, kind, time_partition, commit_number)
                    names = [file.name for file in found]
                    assert len(set(names)) == len(names)
                    assert set(names) == self.live[commit_number].get((kind, time_partition), frozenset())
                for commit_number in range(self.head + 1):
                    assert index.generation_at(TOPIC, kind, time_partition, commit_number) == self.generations[
                        commit_number
                    ].get((kind, time_partition), 0)
            days = {
                time_partition.split("/")[0]
                for (one, time_partition), names in self.live[self.head].items()
                if one is kind and names
            }
            assert days <= set(index.days(TOPIC, kind))
            assert list(index.days(TOPIC, kind)) == sorted(index.days(TOPIC, kind))


def file(kind: FileKind, time_partition: str, number: int) -> CommittedFile:
    return CommittedFile(
        kind, time_partition, f"0-{number}.avro", "t", 10, "00" * 32, 3, (FileRange(0, number, number + 2, 3),)
    )


def added(*places: tuple[FileKind, str]) -> TopicCommit:
    return dataclasses.replace(topic_commit(), files=tuple(file(*place, n) for n, place in enumerate(places)))


places = st.tuples(st.sampled_from(KINDS), st.sampled_from(TIME_PARTITIONS))
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
        st.tuples(st.just("apply"), st.integers(0, 12)),
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
    """Executes the steps. `earlier_files` are all earlier contents of all documents, which a step may restore."""

    def __init__(self) -> None:
        self.world = Warehouse()
        self.storage = self.world.storage
        self.files = self.storage.files
        self.earlier_files: list[tuple[str, bytes]] = []
        self.world.add_commit(TOPIC, added())

    def run_step(self, step: Sequence[object]) -> None:
        name, *values = step
        getattr(self, "_" + str(name).replace(" ", "_"))(*values)
        self.earlier_files += [
            item for item in self.files.items() if item[0].startswith("index/") and item not in self.earlier_files
        ]

    def names(self) -> list[str]:
        return sorted(name for name in self.files if name.startswith("index/"))

    def _add(self, time_partitions: list[tuple[FileKind, str]]) -> None:
        self.world.add_commit(TOPIC, added(*time_partitions))

    def _rewrite(self, time_partitions: list[tuple[FileKind, str]], replaced: int, new: int) -> None:
        live = self.world.live[self.world.head]
        rewrites = tuple(
            TimePartitionRewrite(
                kind, time_partition, tuple(sorted(live.get((kind, time_partition), ())))[replaced:], 0, 0
            )
            for kind, time_partition in time_partitions
        )
        files = added(*(place for bit, place in enumerate(time_partitions) if new & 1 << bit)).files
        self.world.add_commit(
            TOPIC, dataclasses.replace(topic_commit(), files=files, rewrites=rewrites), CommitKind.COMPACT
        )

    def _retire(self, remaining: int) -> None:
        commits = sorted(self.world.log.read_state().rewrites)
        self.world.retire(commits[: max(0, len(commits) - remaining)])

    def _other(self) -> None:
        self.world.add_commit("payments", added((FileKind.DATA, TIME_PARTITION)))

    def _apply(self, count: int) -> None:
        """Applies the last commits, as with a cursor of any age."""
        state = self.world.log.read_state()
        since = max(0, state.commit_number - count)
        commits = commits_of(self.world.log, TOPIC, state, since)
        step = step_of(state, TOPIC, commits, since=since)
        IndexApplier(FileIndex(self.world.log)).apply(step)

    def _lose(self, number: int) -> None:
        for name in self.names()[number : number + 1]:
            del self.files[name]

    def _cut(self, number: int, length: int) -> None:
        for name in self.names()[number : number + 1]:
            self.files[name] = self.files[name][:length]

    def _put_back(self, number: int, version: int) -> None:
        for name, content in self.earlier_files[version % max(1, len(self.earlier_files)) :][:1]:
            self.files[name] = content

    def _swap(self, one: int, other: int) -> None:
        names = self.names()
        if names:
            self.files[names[one % len(names)]] = self.files[names[other % len(names)]]

    def _crash(self, writes: int) -> None:
        """Applies commits and is killed after this number of documents."""
        storage, left = self.storage, [writes]
        replace = MemoryStorage.replace

        def dying(path: str, content: bytes, *, fsynced: bool = True) -> None:
            if path.startswith("index/"):
                if not left[0]:
                    raise Crash
                left[0] -= 1
            replace(storage, path, content)  # type: ignore[arg-type]

        storage.replace = dying  # type: ignore[method-assign]
        try:
            self._apply(3)
        except Crash:
            pass
        finally:
            del storage.replace

    def _check(self) -> None:
        log = CommitLog(self.storage)
        log.read_state()
        self.world.check(FileIndex(log))


@given(steps)
def test_index_equals_a_plain_fold_for_any_state_of_its_documents(script: list[tuple[object, ...]]) -> None:
    play = Play()
    for step in script:
        play.run_step(step)
    play.run_step(("check",))
    play.run_step(("apply", 0))
    play.run_step(("check",))


@pytest.fixture
def world() -> Warehouse:
    """Two days of one topic, applied to the index."""
    world = Warehouse()
    world.add_commit(TOPIC, added((FileKind.DATA, TIME_PARTITIONS[0]), (FileKind.DATA, TIME_PARTITIONS[2])))
    world.add_commit("payments", added((FileKind.DATA, TIME_PARTITION)))
    world.add_commit(TOPIC, added((FileKind.DATA, TIME_PARTITIONS[0])))
    FileIndex(world.log).update_files(TOPIC)
    return world


def commits_read(world: Warehouse, query: Callable[[FileIndex], object]) -> set[int]:
    """The commits that were parsed for the result."""
    log = CommitLog(world.storage)
    log.read_state()
    read: list[int] = []
    document = log.document
    log.document = lambda commit_number: read.append(commit_number) or document(commit_number)  # type: ignore[method-assign,assign,func-returns-value]
    query(FileIndex(log))
    return set(read)


def test_files_of_a_day_are_read_from_one_document(world: Warehouse) -> None:
    storage = world.storage

    def query(index: FileIndex) -> None:
        storage.reads.clear()
        for _ in range(2):
            assert len(index.live(TOPIC, FileKind.DATA, TIME_PARTITIONS[0])) == 2
            assert index.live(TOPIC, FileKind.DATA, "dt=2030-01-01/hr=00") == ()
        documents = [name for name in storage.reads if name.startswith("index/")]
        assert documents == [DAYS, DAY]

    assert commits_read(world, query) == set()


def test_outdated_documents_are_completed_from_later_commits(world: Warehouse) -> None:
    world.add_commit(TOPIC, added((FileKind.DATA, TIME_PARTITIONS[0])))
    assert commits_read(world, lambda index: world.check(index)) == {4}


@pytest.mark.parametrize(
    "damage",
    [
        lambda files: files.pop(DAY),
        lambda files: files.pop(DAYS),
        lambda files: files.update({DAY: files[DAY].replace(b'"length":10', b'"length":11')}),
        lambda files: files.update({DAY: files[index_directory(TOPIC) + "/data/dt=2026-01-02.json"]}),
        lambda files: files.update({DAYS: b"{}"}),
    ],
)
def test_damaged_documents_are_replaced_by_a_fold_of_all_commits_of_the_topic(
    world: Warehouse, damage: Callable[[dict[str, bytes]], object]
) -> None:
    storage = world.storage
    damage(storage.files)
    damaged = dict(storage.files)
    assert commits_read(world, world.check) == {1, 3}
    assert storage.files == damaged, "a reader writes nothing"
    world.add_commit(TOPIC, added((FileKind.DATA, TIME_PARTITIONS[0])))
    FileIndex(world.log).update_files(TOPIC)
    assert commits_read(world, world.check) == set()


def test_an_index_of_another_log_is_detected(world: Warehouse) -> None:
    other = Warehouse()
    for time_partition in (TIME_PARTITIONS[1], TIME_PARTITION, TIME_PARTITIONS[1]):
        other.add_commit(
            "payments" if time_partition == TIME_PARTITION else TOPIC, added((FileKind.DATA, time_partition))
        )
    other.storage.files |= {name: content for name, content in world.storage.files.items() if "index/" in name}
    other.check(FileIndex(other.log))
    FileIndex(other.log).update_files(TOPIC)
    assert commits_read(other, other.check) == set()


def test_a_topic_loaded_again_after_its_removal_has_only_its_new_files(world: Warehouse) -> None:
    """The topic has a new chain of commits, so index documents of the old chain are ignored."""
    topic_state = world.log.read_state().topics[TOPIC]
    commit = world.add_commit(TOPIC, added((FileKind.DATA, TIME_PARTITIONS[1])))
    content = world.log.commit(commit.commit_number).topics[TOPIC]
    changed = dataclasses.replace(commit, topics={TOPIC: dataclasses.replace(content, previous_commit_number=0)})
    log = world.log
    log.history = lambda topic, state, since=0: iter(  # type: ignore[method-assign,misc,assign]
        [dataclasses.replace(CommitLog.document(log, commit.commit_number), value=changed)]
    )
    index = FileIndex(log)
    assert topic_state.commit_number == 3
    assert index.days(TOPIC, FileKind.DATA) == ("dt=2026-01-01",)
    assert index.live(TOPIC, FileKind.DATA, TIME_PARTITIONS[0]) == ()
    assert len(index.live(TOPIC, FileKind.DATA, TIME_PARTITIONS[1])) == 1


def test_a_commit_rewrites_only_documents_of_its_days(world: Warehouse) -> None:
    storage = world.storage
    before = dict(storage.files)
    commit = world.add_commit(
        TOPIC, added((FileKind.DATA, TIME_PARTITIONS[2]), (FileKind.QUARANTINE, TIME_PARTITIONS[2]))
    )
    storage.reads.clear()
    FileIndex(world.log).update_files(TOPIC, (commit,))
    directory = index_directory(TOPIC)
    written = {
        name for name, content in storage.files.items() if name.startswith("index/") and before.get(name) != content
    }
    assert written == {DAYS, f"{directory}/data/dt=2026-01-02.json", f"{directory}/quarantine/dt=2026-01-02.json"}
    assert [name for name in storage.reads if name.startswith("index/")] == [
        DAYS,
        f"{directory}/data/dt=2026-01-02.json",
    ]


def test_deleted_files_are_removed_from_the_index(world: Warehouse) -> None:
    name = next(iter(world.live[1][FileKind.DATA, TIME_PARTITIONS[0]]))
    world.add_commit(TOPIC, rewrite(name, time_partition=TIME_PARTITIONS[0]), CommitKind.COMPACT)
    FileIndex(world.log).update_files(TOPIC)
    day = FileIndex(world.log).day(TOPIC, FileKind.DATA, "dt=2026-01-01")
    assert commits_with_removed_files(day) == {4}
    assert [one.until for one in live_at(day.time_partitions[TIME_PARTITIONS[0]], 3)] == [4, 0]
    world.retire({4})
    assert commits_with_removed_files(FileIndex(world.log).day(TOPIC, FileKind.DATA, "dt=2026-01-01")) == frozenset()
    on_disk = read_document(world.storage.files[DAY], DayIndex).value
    assert commits_with_removed_files(on_disk) == {4}, "until the index is written"
    assert commits_with_removed_files(without_files_removed_by(on_disk, {3})) == {4}
    assert commits_with_removed_files(without_files_removed_by(on_disk, {4})) == frozenset()
    assert len(without_files_removed_by(on_disk, {4}).time_partitions[TIME_PARTITIONS[0]].files) == 1


def test_generations_of_a_topic_that_was_never_rewritten_need_no_document(world: Warehouse) -> None:
    storage = world.storage
    storage.reads.clear()
    assert FileIndex(world.log).generation_at(TOPIC, FileKind.DATA, TIME_PARTITION, 3) == 0
    assert FileIndex(world.log).generation_at("unknown", FileKind.DATA, TIME_PARTITION, 3) == 0
    assert storage.reads == []


def test_a_commit_is_applied_once_and_in_parts() -> None:
    committed = dataclasses.replace(
        topic_commit(files=[committed_file("a", 0, 0, 5), committed_file("b", 0, 5, 9, "dt=2026-01-02/hr=00")]),
        rewrites=(TimePartitionRewrite(FileKind.DATA, TIME_PARTITION, ("old",), 3, 300),),
        generation_before=4,
    )
    day = DayIndex(FileKind.DATA, "dt=2026-01-01")
    assert set(by_day(committed)) == {(FileKind.DATA, "dt=2026-01-01"), (FileKind.DATA, "dt=2026-01-02")}
    once = apply(day, committed, 7, "ab")
    assert once == apply(day, by_day(committed)[FileKind.DATA, "dt=2026-01-01"], 7, "ab")
    assert apply(once, committed, 7, "ab") is once
    assert apply(once, committed, 6, "cd") is once
    assert apply(once, topic_commit(), 8, "cd") is once
    assert (once.commit_number, once.sha256, list(once.time_partitions)) == (7, "ab", [TIME_PARTITION])
    assert [generation_at(once.time_partitions[TIME_PARTITION], commit_number) for commit_number in (6, 7, 8)] == [
        0,
        5,
        5,
    ]
    assert generation_at(IndexedTimePartition(((3, 1), (9, 2))), 8) == 1
