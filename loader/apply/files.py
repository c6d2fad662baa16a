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
AddedFiles = Mapping[str, tuple[str, CommittedFile]]
"""By name, the files that a step adds to a time partition, each with the id of the run that staged it."""


@dataclass(frozen=True, slots=True)
class _RequiredFile:
    """A file that must exist at `path`. It is published from staging (`publication`), or linked from the path that it
    had in an earlier generation."""

    time_partition: TimePartition
    path: str
    publication: Publication | None
    earlier_paths: tuple[str, ...] = ()


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
        required = list(_required_without_rewrites(step) if not step.state.generation else self._required(step))
        missing = frozenset(self.files.publish([file.publication for file in required if file.publication]))
        missing_counts: dict[TimePartition, int] = defaultdict(int)
        for file in required:
            if (file.publication is None or file.publication in missing) and not self._link(step.topic, file):
                self._check_published(step, file)
                missing_counts[file.time_partition] += 1
        for time_partition, count in missing_counts.items():
            step.warn(_missing_files_warning(step.topic, time_partition, count))

    def _required(self, step: Step) -> Iterator[_RequiredFile]:
        """Returns the files of a topic that must exist after the commits in `step` are applied. If they rewrite a time
        partition, these are all its live files; otherwise only the files that the commits add, because the other files
        are already published."""
        rewritten = {
            (rewrite.kind, rewrite.time_partition)
            for commit in step.commits
            for rewrite in commit.topics[step.topic].rewrites
        }
        added = _added_files(step)
        for time_partition in sorted({*rewritten, *added}):
            indexed = self.index.time_partition(step.topic, *time_partition)
            names = None if time_partition in rewritten else frozenset(added[time_partition])
            yield from _required_of_time_partition(step, time_partition, indexed, added.get(time_partition, {}), names)

    def _link(self, topic: str, file: _RequiredFile) -> bool:
        """Ensures that `file` exists at its path. If necessary, links it from the directory of an earlier
        generation. Returns False if it exists in none of these directories."""
        for source in (file.path, *file.earlier_paths):
            if self.files.length(source) is not None:
                # Also if the name exists: the process that linked it may have been killed before the fsync, and the
                # files of earlier generations are deleted a day later.
                self.files.link_or_copy(topic, source, file.path)
                return True
        return False

    def _check_published(self, step: Step, file: _RequiredFile) -> None:
        """Raises an error if the missing `file` may never have been published: `step` still lists its run among
        those that may have files in staging. A missing file of another run was published before others deleted it, and
        is only reported, elsewhere.

        Args:
            step: the commits of the topic that are being applied.

        Raises:
            PublishedFileLost: the file may never have been published.
        """
        if file.publication is not None and file.publication.run_id in step.staged_runs:
            raise PublishedFileLost(
                step.topic, self.files.describe(file.path), "the file is missing at this path and in staging"
            )


def _added_files(step: Step) -> dict[TimePartition, dict[str, tuple[str, CommittedFile]]]:
    added: dict[TimePartition, dict[str, tuple[str, CommittedFile]]] = defaultdict(dict)
    for commit in step.commits:
        for file in commit.topics[step.topic].files:
            added[file.kind, file.time_partition][file.name] = (commit.run_id, file)
    return added


def _required_without_rewrites(step: Step) -> Iterator[_RequiredFile]:
    """Returns the files that must exist after the commits in `step` are applied, for a topic that was never rewritten:
    the files that these commits add. Does not read the index."""
    for (kind, time_partition), files in _added_files(step).items():
        directory = time_partition_directory(step.state.directory, kind, time_partition, 0)
        for name, (run_id, file) in files.items():
            yield _RequiredFile(
                (kind, time_partition), f"{directory}/{name}", _publication(step, directory, run_id, file)
            )


def _required_of_time_partition(
    step: Step,
    time_partition: TimePartition,
    indexed: IndexedTimePartition,
    added: AddedFiles,
    names: frozenset[str] | None,
) -> Iterator[_RequiredFile]:
    """Returns the files of a time partition that were added up to the last commit of `step` (the commits that an
    applier carries out together) and not replaced by any rewrite up to the newest commit of the log.

    Args:
        indexed: the time partition in the index of files.
        added: by name, the files that the step adds to the time partition; they are published from staging.
        names: if given, only files with these names are returned.
    """
    kind, name = time_partition
    last = step.commits[-1].commit_number
    newest = generation_at(indexed, step.commit_number)
    directory = time_partition_directory(step.state.directory, kind, name, newest)
    earlier = sorted({0, *(generation for _, generation in indexed.generations)} - {newest}, reverse=True)
    directories = [time_partition_directory(step.state.directory, kind, name, generation) for generation in earlier]
    for file in live_at(indexed, step.commit_number):
        if file.since <= last and (names is None or file.name in names):
            staged = added.get(file.name)
            yield _RequiredFile(
                time_partition,
                f"{directory}/{file.name}",
                _publication(step, directory, *staged) if staged else None,
                tuple(f"{earlier_directory}/{file.name}" for earlier_directory in directories),
            )


def _publication(step: Step, directory: str, run_id: str, file: CommittedFile) -> Publication:
    return Publication(step.topic, run_id, file.staged, f"{directory}/{file.name}", file.length, file.checksum)


def _missing_files_warning(topic: str, time_partition: TimePartition, count: int) -> str:
    kind, name = time_partition
    quarantine = " --quarantine" if kind is FileKind.QUARANTINE else ""
    return (
        f"{topic}: {count:,} published files of {name} are missing; restore them, or accept the loss with "
        f"`headrace accept-missing {topic} --time-partition {name}{quarantine}`"
    )
