"""Gives decided files their final names."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.loader.follow.base import Step
from headrace.loader.follow.engine import FILES
from headrace.loader.follow.layout import topic_folder
from headrace.loader.storage.protocols import Publication, WarehouseFiles


@dataclass(frozen=True, slots=True)
class FilesFollower:
    """Brings each file from staging to `<folder>/<bucket>/<name>`, decision by decision."""

    files: WarehouseFiles
    name: str = FILES
    is_advisory: bool = False

    def apply(self, step: Step) -> None:
        for decision in step.decisions:
            self.files.publish(
                [
                    Publication(
                        topic=step.topic,
                        work_id=decision.work_id,
                        staged=file.staged,
                        name=f"{topic_folder(step.state.folder, file.kind)}/{file.bucket}/{file.name}",
                        length=file.length,
                        checksum=file.checksum,
                    )
                    for file in decision.topics[step.topic].files
                ]
            )
