"""Every interleaving of loads that commit several topics in chunks with cleaning and archiving.

The processes are the loader's own code: they read the log, commit, void and archive as in a run, one call of the
storage at a time, and each may stop forever after any call. The content of a commit must never change for any reader,
in any order in which archives and files appear and disappear. The result that `try_commit` returns must agree with the
log. A topic may be refused only because of another commit of this topic. From every state one more load must be able to
load the rest, each offset once, and the files of all commits must still be in staging. Each rule that this depends on
is removed in turn to show that the model detects its absence.
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
from support.simulation.interleavings import Interleavings, MakeCall, Moment, Process
from support.simulation.log_model import LogModel, ModelCommitStorage, ModelStaging, Prefix, ReadingLog
from support.simulation.removed_rule import without_rule

ENDS: Mapping[str, Mapping[str, int]] = {
    "a": {"orders": 2, "clicks": 1},
    "b": {"orders": 3},
    "first": {"orders": 1},
    "last": {"orders": 3, "clicks": 2},
}
"""The ends of the topics that each load sees."""
ONLY_A_LOADS = "clicks"


class ChunkResult(NamedTuple):
    """The result of one chunk: the commit number, None if all of it was refused, and the topics that were left out."""

    run_id: str
    topics: frozenset[str]
    commit_number: int | None
    refused: frozenset[str]
    is_voided: bool


def reads_log(make_call: MakeCall, _: None) -> Prefix:
    log = ReadingLog(make_call)
    log.read_state()
    return log.prefix


def commits_plan(name: str, make_call: MakeCall, prefix: Prefix) -> tuple[ChunkResult, ...]:
    log = ReadingLog(make_call, prefix)
    proposal = commit_to_try(name, log.state)
    make_call("stage", name, tuple(file.path for file in staged_files(proposal)))
    results: list[ChunkResult] = []
    real_try_commit = log.try_commit

    def recording(chunk: Commit) -> CommitResult:
        found = real_try_commit(chunk)
        commit_number = found.commit.commit_number if found.commit else None
        is_voided = found.conflict is not None and found.conflict.rule is ConflictRule.RUN_VOIDED
        results.append(
            ChunkResult(chunk.run_id, frozenset(chunk.topics), commit_number, frozenset(found.refused), is_voided)
        )
        return found

    log.try_commit = recording  # type: ignore[method-assign]
    new_ids = (f"{name}{number}" for number in range(2, 9))
    ports: Any = SimpleNamespace(log=log, staging=ModelStaging(make_call), new_run_id=lambda: next(new_ids))
    run._commit_plan(ports, name, proposal)
    return tuple(results)


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


def deletes_staging(make_call: MakeCall, _: None) -> tuple[str, ...]:
    return clean(ReadingLog(make_call), ModelStaging(make_call), run_id="c", build="test", now_ms=0, age_ms=0).run_ids


def archives(make_call: MakeCall, _: None) -> int:
    log = ReadingLog(make_call)
    return log.commits.archive(log.read_state().commit_number)


def load_of(name: str) -> Process:
    return Process(name, (reads_log, functools.partial(commits_plan, name)))


def planned(name: str, prefix: Prefix) -> Process:
    """A load whose plan was made with this prefix of the log."""
    return Process(name, (lambda make_call, _: prefix, functools.partial(commits_plan, name)))


CLEANER, ARCHIVER, READER = Process("c", (deletes_staging,)), Process("p", (archives,)), Process("r", (reads_log,))
LAST = load_of("last")


class Scenario(NamedTuple):
    """`is_chunked`: each topic is a separate chunk. `steps_min`: the least number of steps of all interleavings."""

    first: LogModel
    processes: tuple[Process, ...]
    is_chunked: bool
    steps_min: int


CONFLICT, CHUNKS, VOIDED, ARCHIVED = (
    "one of two topics conflicts",
    "chunks",
    "chunks are voided",
    "commits are archived",
)


def scenario(name: str) -> Scenario:
    if name == CONFLICT:
        return Scenario(LogModel(), (load_of("a"), load_of("b"), CLEANER), False, 100_000)
    if name == CHUNKS:
        return Scenario(LogModel(may_archive=False, hints=("head.json",)), (load_of("a"), load_of("b")), True, 1_000)
    if name == VOIDED:
        return Scenario(LogModel(), (load_of("a"), CLEANER), True, 3_000)
    one = Interleavings().run_alone(LogModel(), load_of("first"))
    two = Interleavings().run_alone(one, load_of("b"))
    puts = Process(
        "b puts", (lambda make_call, _: CommitFiles(ModelCommitStorage(make_call)).put(2, two.committed()[1]),)
    )
    first = one._replace(staged=two.staged)
    return Scenario(first, (planned("a", one.committed()), puts, ARCHIVER, READER), False, 50_000)


@pytest.fixture(autouse=True)
def small_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Archives two commits as soon as there are two."""
    monkeypatch.setattr(commit_files, "ARCHIVE_COMMITS", 2)
    monkeypatch.setattr(commit_files, "UNARCHIVED_COMMITS_MIN", 0)


class CommitContent(NamedTuple):
    """The run of a commit, its offsets by topic, and its files."""

    run_id: str
    offsets: tuple[tuple[str, int], ...]
    files: frozenset[tuple[str, str]]


@functools.cache
def content_of(content: bytes) -> CommitContent:
    commit = read_document(content, Commit).value
    ranges = [(topic, one) for topic, committed in commit.topics.items() for one in committed.ranges]
    return CommitContent(
        commit.run_id,
        tuple((topic, offset) for topic, one in ranges for offset in range(one.start, one.end)),
        frozenset((commit.run_id, file.path) for file in staged_files(commit)),
    )


class WorldChecker:
    """Checks each world, and each process that ends, once."""

    def __init__(self, engine: Interleavings) -> None:
        self._engine = engine
        self._seen: set[object] = set()

    def _is_new(self, *key: object) -> bool:
        known = len(self._seen)
        self._seen.add(key)
        return len(self._seen) > known

    def check(self, before: LogModel, after: LogModel, moments: tuple[Moment, ...]) -> None:
        if self._is_new(before, after):
            known = before.committed()
            assert after.committed()[: len(known)] == known, "a commit has changed"
        for moment in moments:
            if moment.error is not None and not isinstance(moment.error, FileNotFoundError):
                raise AssertionError(f"{moment.process.name} ended with {moment.error!r}")
            if (moment.carried or moment.left) and self._is_new(moment, after):
                self._check_process(moment, after.committed())
        if self._is_new(after):
            self._check_completion(after)

    def _check_process(self, moment: Moment, committed: Prefix) -> None:
        """Checks that the process's knowledge agrees with the log."""
        read = moment.left if moment.process is READER else moment.carried
        if isinstance(read, tuple):
            assert committed[: len(read)] == read, "a commit was read that is not in the log"
        if moment.call is not None or moment.process.name not in ENDS:
            return
        assert isinstance(moment.left, tuple)
        for result in moment.left:
            at = [at for at, content in enumerate(committed, start=1) if content_of(content).run_id == result.run_id]
            assert at == [result.commit_number] * (result.commit_number is not None), (
                "try_commit returned a wrong result"
            )
            topics = (
                {topic for topic, _ in content_of(committed[result.commit_number - 1]).offsets}
                if result.commit_number
                else frozenset()
            )
            assert topics == result.topics - result.refused or result.is_voided, (
                "the committed topics differ from the result"
            )
            assert ONLY_A_LOADS not in result.refused, "a topic is refused without another commit"

    def _check_completion(self, world: LogModel) -> None:
        """All other processes have died. One undisturbed load must commit the rest."""
        try:
            done = self._engine.run_alone(world, LAST)
        except LoaderError as error:
            raise AssertionError("the next load fails") from error
        committed = [content_of(content) for content in done.committed()]
        rows = Counter(at for one in committed for at in one.offsets)
        assert rows == {(topic, at): 1 for topic, end in ENDS["last"].items() for at in range(end)}, "committed twice"
        lost = {file for one in committed for file in one.files} - done.staged
        assert not lost, f"committed files are lost: {lost}"


def explore(name: str, patch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Explores all interleavings of a scenario.

    Returns:
        The number of steps, and the least number that there must be.
    """
    chosen, engine, count = scenario(name), Interleavings(), 0
    checker = WorldChecker(engine)
    if chosen.is_chunked:
        patch.setattr(prepare, "COMMIT_BYTES_MAX", 1)
    for step in engine.steps(chosen.first, chosen.processes):
        checker.check(step.before, step.after, step.moments)
        count += 1
    return count, chosen.steps_min


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(CONFLICT, marks=pytest.mark.simulation),
        pytest.param(CHUNKS, marks=pytest.mark.simulation),
        VOIDED,  # the small case for every hour
        pytest.param(ARCHIVED, marks=pytest.mark.simulation),
    ],
)
def test_every_interleaving_commits_each_offset_once_and_changes_no_commit(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    count, steps_min = explore(name, monkeypatch)
    assert count > steps_min


RULES: Mapping[str, tuple[str, Callable[..., Any], str, str]] = {
    "a voided run does not commit": (VOIDED, run_conflict, "if state.is_voided(commit.run_id):", "if False:"),
    "a committed run is not voided": (VOIDED, run_conflict, "commit.voided & state.staged_runs", "()"),
    "topics that another load committed are left out": (
        CONFLICT,
        topic_conflicts,
        "if conflict is not None:",
        "if owner != topic:",
    ),
    "other topics are not left out": (
        CONFLICT,
        CommitLog.try_commit,
        "if topic not in conflicts}",
        "if False}",
    ),
    "later chunks have separate staging directories": (
        VOIDED,
        run._commit_plan,
        "ports.staging.move(run_id, staged_files(chunk), chunk.run_id)",
        "pass",
    ),
    "after a failed put the owner of the commit is read": (
        CHUNKS,
        CommitLog.try_commit,
        "if found.value.run_id == proposal.run_id:",
        "if True:",
    ),
    "after a put the archive is read": (
        ARCHIVED,
        CommitFiles.put,
        "archived = self._archived(commit_number)",
        "archived = None",
    ),
    "a reader reads the archive": (
        ARCHIVED,
        CommitFiles.read,
        "archived = self._archived(commit_number)",
        "archived = None",
    ),
    "a reader reads the archive after the file": (
        ARCHIVED,
        CommitFiles.read,
        "content = None if is_known else self._storage.read(commit_path(commit_number))",
        "return self._archived(commit_number) or self._storage.read(commit_path(commit_number))",
    ),
    "commit files are removed after their archive exists": (
        ARCHIVED,
        CommitFiles._archive,
        "self._storage.put_if_absent(archive_path(end), content)",
        "[self._storage.remove(commit_path(commit_number)) for commit_number in commits] and "
        "self._storage.put_if_absent(archive_path(end), content)",
    ),
}


VIOLATIONS = (
    "committed twice|are lost|has changed|wrong result|differ from the result|without another commit|not in the log"
    "|next load fails|ended with"
)


@pytest.mark.simulation
@pytest.mark.parametrize("rule", RULES)
def test_without_any_of_the_rules_an_interleaving_breaks(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    name, function, line, instead = RULES[rule]
    without_rule(monkeypatch, function, line, instead)
    with pytest.raises(AssertionError, match=VIOLATIONS):
        explore(name, monkeypatch)
