"""Maintains the index of live files. It comes first, because later appliers look up the directories of files in it."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.loader.apply.base import Step
from headrace.loader.commit.file_index import FileIndex


@dataclass(frozen=True, slots=True)
class IndexApplier:
    files: FileIndex
    name: str = "index"
    is_advisory: bool = False

    def apply(self, step: Step) -> None:
        self.files.bring_up(step.topic, step.commits)
