"""Every interleaving of loads of several topics, committed in chunks, and of those who clean and pack commit numbers
meanwhile.

The processes are the loader's own code: they read the log, offer, void and pack as in a run, one call of the storage at
a time, and each may stop for ever after any of them. What a commit number holds must never change, in whatever order
archives and files come and go and whoever reads it; what a load is told of its offer must be what the log says; a topic
is refused only for what was committed of it. From every state one more load must be able to load the rest, each offset
once, and the files of whatever was committed must be in staging still. The rules that this rests on are taken away one
by one to show that the model would notice.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from headrace.loader import run
from headrace.loader.commit import commit_files, prepare
from headrace.loader.commit.cleaning import clean
from headrace.loader.commit.commit import Commit
from headrace.loader.commit.commit_files import CommitFiles
from headrace.loader.commit.commit_log import CommitLog, CommitResult
from headrace.loader.commit.conflict import ConflictRule, run_conflict, topic_conflicts
from headrace.loader.commit.document import read_document
from headrace.loader.commit.prepare import staged_files
from headrace.loader.commit.state import LoaderState
from headrace.loader.errors import LoaderError
from support.loader.loader_samples import committed_file, committed_range, load, topic_commit
from support.simulation.careless import without_rule
from support.simulation.interleavings import Ask, Interleavings, Moment, Process
from support.simulation.log_on_paper import ModelCommitStorage, ModelStaging, LogModel, Prefix, ReadingLog

ENDS: Mapping[str, Mapping[str, int]] = {
    "a": {"orders": 2, "clicks": 1},
    "b": {"orders": 3},
    "first": {"orders": 1},
    "last": {"orders": 3, "clicks": 2},
}
"""The ends of the topics that each load sees."""
ONLY_A_LOADS = "clicks"


class Told(NamedTuple):
    """What a load is told of a chunk: its commit, None where all of it was refused, and the topics that were left
    out."""

    work: str
    topics: frozenset[str]
    commit_number: int | None
    refused: frozenset[str]
    is_voided: bool


def plans(ask: Ask, _: None) -> Prefix:
    log = ReadingLog(ask)
    log.read_state()
    return log.prefix


def decides(name: str, ask: Ask, prefix: Prefix) -> tuple[Told, ...]:
    log = ReadingLog(ask, prefix)
    proposal = commit_to_try(name, log.state)
    ask("stage", name, tuple(file.path for file in staged_files(proposal)))
    told: list[Told] = []
    plain = log.try_commit

    def noting(chunk: Commit) -> CommitResult:
        found = plain(chunk)
        commit_number = found.commit.commit_number if found.commit else None
        is_voided = found.conflict is not None and found.conflict.rule is ConflictRule.WORK_VOIDED
        told.append(Told(chunk.run_id, frozenset(chunk.topics), commit_number, frozenset(found.refused), is_voided))
        return found

    log.try_commit = noting  # type: ignore[method-assign]
    new_ids = (f"{name}{number}" for number in range(2, 9))
    ports: Any = SimpleNamespace(log=log, staging=ModelStaging(ask), new_run_id=lambda: next(new_ids))
    run._commit_plan(ports, name, proposal)
    return tuple(told)


def commit_to_try(name: str, state: LoaderState) -> Commit:
    topics = {}
    for topic, end in ENDS[name].items():
        previous = state.next_offset(topic, 0)
        start = previous or 0
        if start < end:
            files = [committed_file(f"{topic}.avro", 0, start, end)]
            read = committed_range(0, previous, start, end)
            topics[topic] = topic_commit(read, files=files, new=topic not in state.topics, table=topic)
    return dataclasses.replace(load(name, topics), planned_after=state.commit_number)


def cleans(ask: Ask, _: None) -> tuple[str, ...]:
    return clean(ReadingLog(ask), ModelStaging(ask), run_id="c", build="test", now_ms=0, age_ms=0).works


def packs(ask: Ask, _: None) -> int:
    log = ReadingLog(ask)
    return log.commits.pack(log.read_state().commit_number)


def load_of(name: str) -> Process:
    return Process(name, (plans, functools.partial(decides, name)))


def planned(name: str, prefix: Prefix) -> Process:
    """A load that has planned when this was the log."""
    return Process(name, (lambda ask, _: prefix, functools.partial(decides, name)))


CLEANER, PACKER, READER = Process("c", (cleans,)), Process("p", (packs,)), Process("r", (plans,))
LAST = load_of("last")


class Scenario(NamedTuple):
    """`is_chunked` says that each topic is a chunk of its own; `fewest` are the steps that it has at least."""

    first: LogModel
    processes: tuple[Process, ...]
    is_chunked: bool
    fewest: int


REFUSED, CHUNKS, VOIDED, PACKED = "a topic of two is another's", "chunks", "chunks are voided", "slots are packed"


def scenario(name: str) -> Scenario:
    if name == REFUSED:
        return Scenario(LogModel(), (load_of("a"), load_of("b"), CLEANER), False, 100_000)
    if name == CHUNKS:
        return Scenario(LogModel(packs=False, hints=("head.json",)), (load_of("a"), load_of("b")), True, 1_000)
    if name == VOIDED:
        return Scenario(LogModel(), (load_of("a"), CLEANER), True, 3_000)
    one = Interleavings().alone(LogModel(), load_of("first"))
    two = Interleavings().alone(one, load_of("b"))
    puts = Process("b puts", (lambda ask, _: CommitFiles(ModelCommitStorage(ask)).put(2, two.committed()[1]),))
    first = one._replace(staged=two.staged)
    return Scenario(first, (planned("a", one.committed()), puts, PACKER, READER), False, 50_000)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commit numbers are an archive as soon as they are committed."""
    monkeypatch.setattr(commit_files, "ARCHIVE_COMMITS", 2)
    monkeypatch.setattr(commit_files, "LOOSE_COMMITS_MIN", 0)


class Said(NamedTuple):
    """Of a commit: its work, the offsets by topic, and the files."""

    work: str
    offsets: tuple[tuple[str, int], ...]
    files: frozenset[tuple[str, str]]


@functools.cache
def said(content: bytes) -> Said:
    commit = read_document(content, Commit).value
    ranges = [(topic, one) for topic, committed in commit.topics.items() for one in committed.ranges]
    return Said(
        commit.run_id,
        tuple((topic, offset) for topic, one in ranges for offset in range(one.start, one.end)),
        frozenset((commit.run_id, file.path) for file in staged_files(commit)),
    )


class Judge:
    """Looks at each world, and at each process that comes to its end, once."""

    def __init__(self, engine: Interleavings) -> None:
        self._engine = engine
        self._seen: set[object] = set()

    def _is_new(self, *what: object) -> bool:
        known = len(self._seen)
        self._seen.add(what)
        return len(self._seen) > known

    def look(self, before: LogModel, after: LogModel, moments: tuple[Moment, ...]) -> None:
        if self._is_new(before, after):
            known = before.committed()
            assert after.committed()[: len(known)] == known, "a slot has changed"
        for moment in moments:
            if moment.error is not None and not isinstance(moment.error, FileNotFoundError):
                raise AssertionError(f"{moment.process.name} ended with {moment.error!r}")
            if (moment.carried or moment.left) and self._is_new(moment, after):
                self._is_true(moment, after.committed())
        if self._is_new(after):
            self._can_be_finished(after)

    def _is_true(self, moment: Moment, committed: Prefix) -> None:
        """What a process knows of the log."""
        read = moment.left if moment.process is READER else moment.carried
        if isinstance(read, tuple):
            assert committed[: len(read)] == read, "what was read is not in the log"
        if moment.call is not None or moment.process.name not in ENDS:
            return
        assert isinstance(moment.left, tuple)
        for told in moment.left:
            at = [at for at, content in enumerate(committed, start=1) if said(content).work == told.work]
            assert at == [told.commit_number] * (told.commit_number is not None), "what was told of an offer is not so"
            topics = (
                {topic for topic, _ in said(committed[told.commit_number - 1]).offsets}
                if told.commit_number
                else frozenset()
            )
            assert topics == told.topics - told.refused or told.is_voided, "other topics were committed than was told"
            assert ONLY_A_LOADS not in told.refused, "a topic is refused that nobody else committed"

    def _can_be_finished(self, world: LogModel) -> None:
        """Whoever was at work has died; one undisturbed load decides the rest."""
        try:
            done = self._engine.alone(world, LAST)
        except LoaderError as error:
            raise AssertionError("the next load does not go on") from error
        committed = [said(content) for content in done.committed()]
        rows = Counter(at for one in committed for at in one.offsets)
        assert rows == {(topic, at): 1 for topic, end in ENDS["last"].items() for at in range(end)}, "committed twice"
        lost = {file for one in committed for file in one.files} - done.staged
        assert not lost, f"committed files are lost: {lost}"


def explore(name: str, patch: pytest.MonkeyPatch) -> tuple[int, int]:
    """
    Returns:
        The steps that all interleavings took, and the least of them that there must be.
    """
    wanted, engine, count = scenario(name), Interleavings(), 0
    judge = Judge(engine)
    if wanted.is_chunked:
        patch.setattr(prepare, "COMMIT_BYTES_MAX", 1)
    for step in engine.steps(wanted.first, wanted.processes):
        judge.look(step.before, step.after, step.moments)
        count += 1
    return count, wanted.fewest


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(REFUSED, marks=pytest.mark.simulation),
        pytest.param(CHUNKS, marks=pytest.mark.simulation),
        VOIDED,  # the small case for every hour
        pytest.param(PACKED, marks=pytest.mark.simulation),
    ],
)
def test_in_every_interleaving_the_log_says_each_thing_once_and_for_ever(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    count, fewest = explore(name, monkeypatch)
    assert count > fewest


RULES: Mapping[str, tuple[str, Callable[..., Any], str, str]] = {
    "voided work is not committed": (VOIDED, run_conflict, "if state.is_voided(commit.run_id):", "if False:"),
    "committed work is not voided": (VOIDED, run_conflict, "commit.voided & state.works", "()"),
    "what another load committed is left out": (
        REFUSED,
        topic_conflicts,
        "if conflict is not None:",
        "if owner != topic:",
    ),
    "only that is left out": (
        REFUSED,
        CommitLog.try_commit,
        "if topic not in conflicts}",
        "if False}",
    ),
    "later chunks have staging of their own": (
        VOIDED,
        run._commit_plan,
        "ports.staging.move(run_id, staged_files(chunk), chunk.run_id)",
        "pass",
    ),
    "who put a slot reads whose it is": (
        CHUNKS,
        CommitLog.try_commit,
        "if found.value.run_id == proposal.run_id:",
        "if True:",
    ),
    "who put a slot looks for its archive": (
        PACKED,
        CommitFiles.put,
        "archived = self._archived(commit_number)",
        "archived = None",
    ),
    "who read a slot looks for its archive": (
        PACKED,
        CommitFiles.read,
        "archived = self._archived(commit_number)",
        "archived = None",
    ),
    "and looks for it afterwards": (
        PACKED,
        CommitFiles.read,
        "content = None if is_known else self._storage.read(commit_path(commit_number))",
        "return self._archived(commit_number) or self._storage.read(commit_path(commit_number))",
    ),
    "slots go when their archive is there": (
        PACKED,
        CommitFiles._pack,
        "self._storage.put_if_absent(archive_path(end), content)",
        "[self._storage.remove(commit_path(commit_number)) for commit_number in commits] and "
        "self._storage.put_if_absent(archive_path(end), content)",
    ),
}


BREAKS = "committed twice|are lost|has changed|is not so|than was told|nobody else|not in the log|not go on|ended with"


@pytest.mark.simulation
@pytest.mark.parametrize("rule", RULES)
def test_without_any_of_the_rules_an_interleaving_breaks(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    name, function, line, instead = RULES[rule]
    without_rule(monkeypatch, function, line, instead)
    with pytest.raises(AssertionError, match=BREAKS):
        explore(name, monkeypatch)
