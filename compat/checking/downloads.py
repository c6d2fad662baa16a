"""Schemas of a registry as files: `<subject>.avsc`, or `<subject>/<version>.avsc` with every version.

Both are layouts that `--against FOLDER` reads. What a schema refers to is downloaded too.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from headrace.compat.checking.baselines.folder import SUBJECT_CHARS
from headrace.registry.client import RegisteredSchema, RegistryClient
from headrace.registry.errors import SubjectNotFound, VersionNotFound


@dataclass(frozen=True, slots=True)
class Download:
    """A file to be. `state` is new, updated or unchanged."""

    path: Path
    text: str
    subject: str
    version: int
    state: str


def wanted_subjects(client: RegistryClient, patterns: Sequence[str]) -> list[str]:
    """The subjects that names and patterns mean, all of the default context without any.

    Raises:
        SubjectNotFound: a pattern means none.
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
    client: RegistryClient, subjects: Sequence[str], folder: Path, *, all_versions: bool
) -> Iterator[Download]:
    """The files of subjects and of those they refer to.

    Raises:
        RegistryError: the registry cannot be asked.
        OSError: a file that is there cannot be read.
    """
    waiting, seen = list(subjects), set(subjects)
    while waiting:
        subject = waiting.pop(0)
        for item in _versions(client, subject, all_versions):
            for reference in item.references:
                if reference.subject not in seen:
                    seen.add(reference.subject)
                    waiting.append(reference.subject)
            yield _download(item, subject, folder, all_versions)


def _versions(client: RegistryClient, subject: str, all_versions: bool) -> Iterator[RegisteredSchema]:
    if not all_versions:
        yield client.version(subject, "latest")
        return
    for number in client.versions(subject):
        try:
            yield client.version(subject, number)
        except VersionNotFound:  # deleted for good since the list was made
            continue


def _download(item: RegisteredSchema, subject: str, folder: Path, all_versions: bool) -> Download:
    version = item.version or 1
    name = quote(subject, safe=SUBJECT_CHARS)
    path = folder / name / f"{version}.avsc" if all_versions else folder / f"{name}.avsc"
    text = _indented(item.text)
    state = "new"
    if path.exists():
        state = "unchanged" if path.read_text(encoding="utf-8", errors="replace") == text else "updated"
    return Download(path, text, subject, version, state)


def _indented(text: str) -> str:
    """A registry keeps schemas in one line; people and line numbers want many."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"
    except (ValueError, RecursionError):
        return text
