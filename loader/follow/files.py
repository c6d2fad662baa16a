"""Gives decided files their final names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.loader.decide.decision_log import staging_path
from headrace.loader.decide.storage import LocalStorage, publish
from headrace.loader.follow.base import Step
from headrace.loader.follow.engine import FILES
from headrace.loader.follow.layout import topic_dir


@dataclass(frozen=True, slots=True)
class FilesFollower:
    """Links each file from staging to `<warehouse>/<folder>/<bucket>/<name>` and takes it out of staging.

    Readers see whole files only; a file that a crash left under both names loses the staged one the next time.
    """

    warehouse: Path
    storage: LocalStorage
    name: str = FILES
    is_advisory: bool = False

    def apply(self, step: Step) -> None:
        for decision in step.decisions:
            staging = self.storage.path(staging_path(decision.work_id))
            for file in decision.topics[step.topic].files:
                folder = topic_dir(self.warehouse, step.state.folder, file.kind)
                publish(step.topic, staging / file.staged, folder / file.bucket / file.name, file.length)
