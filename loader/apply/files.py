"""Gives decided files their final names, in the folder of their bucket's newest generation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.loader.apply.base import Step
from headrace.loader.apply.engine import FILES
from headrace.loader.apply.layout import bucket_folder
from headrace.loader.commit.bucket_index import IndexedBucket, generation_at, live_at
from headrace.loader.commit.decision import DecidedFile
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.errors import PublishedFileLost
from headrace.loader.storage.protocols import Publication, WarehouseFiles
from headrace.loader.work_unit import FileKind

Bucket = tuple[FileKind, str]
Added = Mapping[str, tuple[str, DecidedFile]]
"""By name the files that a step adds to a bucket, each with the work that staged it."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A file that must be at `name`: as `publication` says, or brought from where it was in earlier generations."""

    bucket: Bucket
    name: str
    publication: Publication | None
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FilesFollower:
    """Publishes what was staged, and, where a bucket was rewritten, brings what lives on of it to the folder of the
    new generation under a second name.

    What counts is where the files are in the end, and not the way there: decisions may be applied again after their
    files were rewritten, brought elsewhere or removed. A file that is nowhere although it had been published was
    removed by hand; that is told, and holds nothing up.
    """

    files: WarehouseFiles
    index: FileIndex
    name: str = FILES
    is_advisory: bool = False

    def apply(self, step: Step) -> None:
        wanted = list(_wanted_at_first(step) if not step.state.generation else self._wanted(step))
        missing = frozenset(self.files.publish([one.publication for one in wanted if one.publication]))
        gone: dict[Bucket, int] = defaultdict(int)
        for one in wanted:
            if (one.publication is None or one.publication in missing) and not self._bring(step.topic, one):
                self._refuse_undelivered(step, one)
                gone[one.bucket] += 1
        for bucket, files in gone.items():
            step.warn(_gone_by_hand(step.topic, bucket, files))

    def _wanted(self, step: Step) -> Iterator[_Wanted]:
        """The live files of every bucket that the step changes; those of a bucket that was not rewritten only as far
        as the step adds them, since the others are where they were."""
        rewritten = {
            (rewrite.kind, rewrite.bucket)
            for decision in step.decisions
            for rewrite in decision.topics[step.topic].rewrites
        }
        added = _added(step)
        for bucket in sorted({*rewritten, *added}):
            indexed = self.index.bucket(step.topic, *bucket)
            names = None if bucket in rewritten else frozenset(added[bucket])
            yield from _wanted_of(step, bucket, indexed, added.get(bucket, {}), names)

    def _bring(self, topic: str, one: _Wanted) -> bool:
        """Whether the file is at its name, if need be from one of its earlier ones."""
        for source in (one.name, *one.earlier):
            if self.files.length(source) is not None:
                # Also where it is there: whoever brought it may have been killed before its name was on the disk, and
                # the earlier ones go a day later.
                self.files.bring(topic, source, one.name)
                return True
        return False

    def _refuse_undelivered(self, step: Step, one: _Wanted) -> None:
        """
        Raises:
            PublishedFileLost: the file is not known to have been published ever.
        """
        if one.publication is not None and one.publication.work_id in step.works:
            raise PublishedFileLost(step.topic, self.files.describe(one.name), "nor is it in staging")


def _added(step: Step) -> dict[Bucket, dict[str, tuple[str, DecidedFile]]]:
    added: dict[Bucket, dict[str, tuple[str, DecidedFile]]] = defaultdict(dict)
    for decision in step.decisions:
        for file in decision.topics[step.topic].files:
            added[file.kind, file.bucket][file.name] = (decision.work_id, file)
    return added


def _wanted_at_first(step: Step) -> Iterator[_Wanted]:
    """Of a topic that was never rewritten: whatever was added, in the first folders, without a look at the index."""
    for (kind, bucket), files in _added(step).items():
        folder = bucket_folder(step.state.folder, kind, bucket, 0)
        for name, (work_id, file) in files.items():
            yield _Wanted((kind, bucket), f"{folder}/{name}", _publication(step, folder, work_id, file))


def _wanted_of(
    step: Step, bucket: Bucket, indexed: IndexedBucket, added: Added, names: frozenset[str] | None
) -> Iterator[_Wanted]:
    """The live files of a bucket, all or those of these names; what later decisions add is for later steps."""
    kind, where = bucket
    upto = step.decisions[-1].slot
    newest = generation_at(indexed, step.slot)
    folder = bucket_folder(step.state.folder, kind, where, newest)
    earlier = sorted({0, *(generation for _, generation in indexed.generations)} - {newest}, reverse=True)
    folders = [bucket_folder(step.state.folder, kind, where, generation) for generation in earlier]
    for file in live_at(indexed, step.slot):
        if file.since <= upto and (names is None or file.name in names):
            staged = added.get(file.name)
            yield _Wanted(
                bucket,
                f"{folder}/{file.name}",
                _publication(step, folder, *staged) if staged else None,
                tuple(f"{one}/{file.name}" for one in folders),
            )


def _publication(step: Step, folder: str, work_id: str, file: DecidedFile) -> Publication:
    return Publication(step.topic, work_id, file.staged, f"{folder}/{file.name}", file.length, file.checksum)


def _gone_by_hand(topic: str, bucket: Bucket, files: int) -> str:
    kind, where = bucket
    quarantine = " --quarantine" if kind is FileKind.QUARANTINE else ""
    return (
        f"{topic}: published files of {where} are gone, {files:,} of them; put them back, or accept it with "
        f"`headrace forget {topic} --bucket {where}{quarantine}`"
    )
