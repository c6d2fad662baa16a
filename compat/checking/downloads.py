"""Downloads schemas of a registry to files: `<subject>.avsc`, or `<subject>/<version>.avsc` for every version.

`--against DIRECTORY` reads both layouts. Referenced schemas are downloaded too. Subject names are untrusted: no file
name leaves the directory, and two subjects that differ only in case get two files on every system.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.compat.checking.baselines.registry import CONNECTIONS
from headrace.compat.checking.inputs import SUFFIX
from headrace.compat.file_names import subject_file_name
from headrace.registry.client import RegisteredSchema, RegistryClient
from headrace.registry.errors import SubjectNotFound, VersionNotFound


@dataclass(frozen=True, slots=True)
class Download:
    """A file to write. `state` is `new`, `updated` or `unchanged`, compared with the file that exists at `path`."""

    path: Path
    text: str
    subject: str
    version: int
    state: str


@dataclass(frozen=True, slots=True)
class SkippedDownload:
    """A subject, or a version of one, for which no file can be written."""

    subject: str
    reason: str


def match_subjects(client: RegistryClient, patterns: Sequence[str]) -> list[str]:
    """Returns the registry's subjects that match the patterns; without patterns, all subjects of the default context.

    Args:
        patterns: subjects, or glob patterns such as `orders-*`.

    Raises:
        SubjectNotFound: a pattern matches no subject.
    """
    subjects = client.subjects("" if not any(pattern.startswith(":") for pattern in patterns) else None)
    if not patterns:
        return subjects
    found: dict[str, None] = {}
    for pattern in patterns:
        matching = [name for name in subjects if name == pattern or fnmatch.fnmatchcase(name, pattern)]
        if not matching:
            raise SubjectNotFound(subject=pattern)
        found.update(dict.fromkeys(matching))
    return list(found)


def plan_downloads(
    client: RegistryClient, subjects: Sequence[str], directory: Path, *, all_versions: bool
) -> Iterator[Download | SkippedDownload]:
    """Yields the files to write for the given subjects and all subjects that their schemas refer to, directly or
    indirectly, and the subjects for which there can be no file.

    Args:
        directory: the directory of the files.
        all_versions: download every version of a subject instead of the latest one.

    Raises:
        RegistryError: a request to the registry failed.
        OSError: an existing file cannot be read.
    """
    names = _Names(directory, "" if all_versions else SUFFIX)
    for subject, versions in _with_references(client, subjects, all_versions):
        name = names.of(subject)
        if name is None:
            reason = f"{directory} has an entry with the same name in other case; delete or rename that entry"
            yield SkippedDownload(subject, reason)
            continue
        if not versions:
            yield SkippedDownload(subject, "the registry no longer has it")
        for item in versions:
            version = item.version or 1
            path = directory / name / f"{version}{SUFFIX}" if all_versions else directory / name
            yield _download(item, subject, version, path)


def _with_references(
    client: RegistryClient, subjects: Sequence[str], all_versions: bool
) -> Iterator[tuple[str, Sequence[RegisteredSchema]]]:
    """Yields the subjects, and all to which their schemas refer, with the versions to download. These are requested
    ahead, by a few threads."""
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        requests = {subject: pool.submit(_versions, client, subject, all_versions) for subject in subjects}
        waiting = list(requests)
        try:
            for subject in waiting:
                versions = requests[subject].result()
                for target in {target: None for item in versions for target in _referenced_subjects(item, subject)}:
                    if target not in requests:
                        requests[target] = pool.submit(_versions, client, target, all_versions)
                        waiting.append(target)
                yield subject, versions
        finally:
            pool.shutdown(cancel_futures=True)


class _Names:
    """Assigns each subject the path of a file or directory below one directory. Existing and assigned paths are
    compared in lower case, as case-insensitive file systems compare them."""

    def __init__(self, directory: Path, suffix: str) -> None:
        self._suffix = suffix
        existing = [entry.name for entry in directory.iterdir()] if directory.is_dir() else []
        self._names = {name.lower(): name for name in existing}

    def of(self, subject: str) -> str | None:
        """Returns the path of a subject's file or directory; None if each possible path is in use."""
        for encodes_letters in (False, True):
            name = subject_file_name(subject, encodes_letters=encodes_letters) + self._suffix
            parts = name.split("/")
            paths = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
            if all(self._names.setdefault(path.lower(), path) == path for path in paths):
                return name
        return None


def _referenced_subjects(item: RegisteredSchema, subject: str) -> Iterator[str]:
    """Yields the subjects to which a schema of `subject` refers."""
    for reference in item.references:
        is_qualified = reference.subject.startswith(":.")
        yield reference.subject if is_qualified else _context(subject) + reference.subject


def _context(subject: str) -> str:
    """Returns the prefix that names the context of a subject, such as `:.eu:`; "" for the default context. If a
    schema's reference has no such prefix, it refers to a subject of the schema's own context."""
    context, colon, _ = subject[1:].partition(":") if subject.startswith(":.") else ("", "", "")
    return f":{context}:" if colon else ""


def _versions(client: RegistryClient, subject: str, all_versions: bool) -> Sequence[RegisteredSchema]:
    """Returns the latest version of a subject, or all of them. Omits those that were deleted since they were listed."""
    found = []
    with suppress(SubjectNotFound):
        numbers: Sequence[int | Literal["latest"]] = client.versions(subject) if all_versions else ("latest",)
        for version in numbers:
            with suppress(VersionNotFound):
                found.append(client.version(subject, version))
    return found


def _download(item: RegisteredSchema, subject: str, version: int, path: Path) -> Download | SkippedDownload:
    if item.schema_type != "AVRO":
        return SkippedDownload(subject, f"version {version} is of the schema type {item.schema_type}; expected AVRO")
    text = _indented(item.text)
    state = "new"
    if path.exists():
        state = "unchanged" if path.read_text(encoding="utf-8", errors="replace") == text else "updated"
    return Download(path, text, subject, version, state)


def _indented(text: str) -> str:
    """Returns the text of a schema with indented lines, because the registry stores it as one line, and diffs and line
    numbers need several. A text with half of a surrogate pair, which only a JSON escape can represent in a file, is
    escaped."""
    try:
        document = json.loads(text)
        indented = json.dumps(document, indent=2, ensure_ascii=False)
        is_encodable = not any("\ud800" <= letter <= "\udfff" for letter in indented)
        return (indented if is_encodable else json.dumps(document, indent=2)) + "\n"
    except (ValueError, RecursionError):
        return text
