"""Gives committed files their final names, in the directory of the newest generation of their time partition. (A
rewrite of a time partition begins a new generation.)"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.loader.apply.base import Step
from headrace.loader.apply.engine import FILES
from headrace.loader.apply.layout import time_partition_directory
from headrace.loader.commit.commit import CommittedFile
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.partition_index import IndexedTimePartition, generation_at, live_at
from headrace.loader.errors import PublishedFileLost
from headrace.loader.storage.protocols import Publication, WarehouseFiles
from headrace.loader.work_unit import FileKind

TimePartition = tuple[FileKind, str]
Added = Mapping[str, tuple[str, CommittedFile]]
"""By name, the files that a step adds to a time partition, each with the id of the run that staged it."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A file that must exist at the path `name`. It is published from staging (`publication`), or linked from the path
    that it had in an earlier generation."""

    time_partition: TimePartition
    name: str
    publication: Publication | None
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FilesApplier:
    """Publishes staged files. If a time partition was rewritten, links its live files into the directory of the new
    generation.

    A file counts as published if its final path exists, because commits may be applied again after their files were
    rewritten, moved or deleted. A published file that no longer exists is reported, and the topic continues.
    """

    files: WarehouseFiles
    index: FileIndex
    name: str = FILES
    is_advisory: bool = False

    def apply(self, step: Step) -> None:
        wanted = list(_wanted_at_first(step) if not step.state.generation else self._wanted(step))
        missing = frozenset(self.files.publish([one.publication for one in wanted if one.publication]))
        gone: dict[TimePartition, int] = defaultdict(int)
        for one in wanted:
            if (one.publication is None or one.publication in missing) and not self._bring(step.topic, one):
                self._refuse_undelivered(step, one)
                gone[one.time_partition] += 1
        for time_partition, files in gone.items():
            step.warn(_gone_by_hand(step.topic, time_partition, files))

    def _wanted(self, step: Step) -> Iterator[_Wanted]:
        """Returns the files of a topic that must exist after the commits in `step` are applied. If they rewrite a time
        partition, these are all its live files; otherwise only the files that the commits add, because the other files
        are already published."""
        rewritten = {
            (rewrite.kind, rewrite.time_partition)
            for commit in step.commits
            for rewrite in commit.topics[step.topic].rewrites
        }
        added = _added(step)
        for time_partition in sorted({*rewritten, *added}):
            indexed = self.index.time_partition(step.topic, *time_partition)
            names = None if time_partition in rewritten else frozenset(added[time_partition])
            yield from _wanted_of(step, time_partition, indexed, added.get(time_partition, {}), names)

    def _bring(self, topic: str, one: _Wanted) -> bool:
        """Ensures that the file `one` exists at its path. If necessary, links it from the directory of an earlier
        generation. Returns False if it exists in none of these directories."""
        for source in (one.name, *one.earlier):
            if self.files.length(source) is not None:
                # Also if the name exists: the process that linked it may have been killed before the fsync, and the
                # files of earlier generations are deleted a day later.
                self.files.bring(topic, source, one.name)
                return True
        return False

    def _refuse_undelivered(self, step: Step, one: _Wanted) -> None:
        """Raises an error if the missing file `one` may never have been published: `step` still lists its run among
        those that may have files in staging. A missing file of another run was published before others deleted it, and
        is only reported, elsewhere.

        Args:
            step: the commits of the topic that are being applied.

        Raises:
            PublishedFileLost: the file may never have been published.
        """
        if one.publication is not None and one.publication.run_id in step.staged_runs:
            raise PublishedFileLost(
                step.topic, self.files.describe(one.name), "the file is missing at this path and in staging"
            )


def _added(step: Step) -> dict[TimePartition, dict[str, tuple[str, CommittedFile]]]:
    added: dict[TimePartition, dict[str, tuple[str, CommittedFile]]] = defaultdict(dict)
    for commit in step.commits:
        for file in commit.topics[step.topic].files:
            added[file.kind, file.time_partition][file.name] = (commit.run_id, file)
    return added


def _wanted_at_first(step: Step) -> Iterator[_Wanted]:
    """Returns the files that must exist after the commits in `step` are applied, for a topic that was never rewritten:
    the files that these commits add. Does not read the index."""
    for (kind, time_partition), files in _added(step).items():
        directory = time_partition_directory(step.state.directory, kind, time_partition, 0)
        for name, (run_id, file) in files.items():
            yield _Wanted((kind, time_partition), f"{directory}/{name}", _publication(step, directory, run_id, file))


def _wanted_of(
    step: Step, time_partition: TimePartition, indexed: IndexedTimePartition, added: Added, names: frozenset[str] | None
) -> Iterator[_Wanted]:
    """Returns the files of a time partition that were added up to the last commit of `step` (the commits that an
    applier carries out together) and not replaced by any rewrite up to the newest commit of the log.

    Args:
        indexed: the time partition in the index of files.
        added: by name, the files that the step adds to the time partition; they are published from staging.
        names: if given, only files with these names are returned.
    """
    kind, where = time_partition
    upto = step.commits[-1].commit_number
    newest = generation_at(indexed, step.commit_number)
    directory = time_partition_directory(step.state.directory, kind, where, newest)
    earlier = sorted({0, *(generation for _, generation in indexed.generations)} - {newest}, reverse=True)
    directories = [time_partition_directory(step.state.directory, kind, where, generation) for generation in earlier]
    for file in live_at(indexed, step.commit_number):
        if file.since <= upto and (names is None or file.name in names):
            staged = added.get(file.name)
            yield _Wanted(
                time_partition,
                f"{directory}/{file.name}",
                _publication(step, directory, *staged) if staged else None,
                tuple(f"{one}/{file.name}" for one in directories),
            )


def _publication(step: Step, directory: str, run_id: str, file: CommittedFile) -> Publication:
    return Publication(step.topic, run_id, file.staged, f"{directory}/{file.name}", file.length, file.checksum)


def _gone_by_hand(topic: str, time_partition: TimePartition, files: int) -> str:
    kind, where = time_partition
    quarantine = " --quarantine" if kind is FileKind.QUARANTINE else ""
    return (
        f"{topic}: {files:,} published files of {where} are missing; restore them, or accept the loss with "
        f"`headrace accept-missing {topic} --time-partition {where}{quarantine}`"
    )
