"""Keeps the index of which files are live. It makes nothing visible, and goes first: later appliers ask it where the
files of a time partition belong."""

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
