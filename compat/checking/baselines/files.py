"""Earlier versions given as files: every new schema is compared with the same files, oldest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from headrace.avro_schema import SchemaParseError
from headrace.compat.check_result import Failure, FailureKind
from headrace.compat.checking.baselines.base import (
    BaselineFailed,
    CandidateSchema,
    EarlierVersion,
    LevelChoice,
    VersionHistory,
)
from headrace.compat.checking.inputs import WorkingDirectoryFiles, is_json_name, is_schema_name, read_texts
from headrace.compat.checking.scope import FileScope
from headrace.compat.checking.type_sets import TypeSet


class FilesBaseline:
    def __init__(self, paths: Sequence[str], *, comments: bool = False) -> None:
        self._paths = tuple(paths)
        self._comments = comments

    @property
    def name(self) -> str:
        return ", ".join(self._paths)

    def histories(self, candidates: Sequence[CandidateSchema], choice: LevelChoice) -> Sequence[VersionHistory]:
        texts, unreadable = read_texts(dict.fromkeys(self._paths), comments=self._comments)
        failures = [_with_advice(failure) for failure in unreadable]
        types = TypeSet(texts, type_source=WorkingDirectoryFiles(self._comments))
        for path in texts:
            try:
                types.schema(path)
            except SchemaParseError as error:
                failures.append(Failure.invalid(path, error))
        if failures:
            raise BaselineFailed(failures)
        versions = tuple(
            EarlierVersion(number, path, texts[path], partial(types.schema, path))
            for number, path in enumerate(self._paths, 1)
        )
        return [VersionHistory(versions, len(versions))] * len(candidates)

    def find_equal_version(self, candidate: CandidateSchema, text: str) -> str:
        return ""

    def deleted_files(self, scope: FileScope) -> Sequence[tuple[str, str]]:
        return ()


def _with_advice(failure: Failure) -> Failure:
    """Returns the failure of a baseline file. If the file cannot be opened and its name is not that of a schema file,
    the message also says how to write a git revision, because the user may have meant one."""
    if failure.kind is FailureKind.INVALID or is_schema_name(failure.file) or is_json_name(failure.file):
        return failure
    return replace(failure, message=f"{failure.message}; a git revision is written git:{failure.file}")
