"""From a registry to a snapshot of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from headrace.registry.domain import SubjectVersion
from headrace.registry.errors import RegistryChanged
from headrace.registry.names import DEFAULT_CONTEXT, GLOBAL_CONTEXT
from headrace.registry.transfer.parallel import PARALLEL_REQUESTS_MAX
from headrace.registry.transfer.remote import RemoteRegistry
from headrace.registry.transfer.snapshot import (
    CircularReferences,
    ExportedVersion,
    Selection,
    Snapshot,
    ordered_by_references,
    scope_of_context,
    scopes_of,
)

logger = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 3  # at a list of versions that does not change meanwhile
Answer = TypeVar("Answer")
ProgressCallback = Callable[[str, int, int], None]
"""Told of a step by its name, how much of it is done, and of how much (0: not known)."""


def read_registry(remote: RemoteRegistry, selection: Selection, steps: ProgressCallback) -> Snapshot:
    """What a registry holds, or a part of it. Versions that the part refers to belong to it.

    Raises:
        RegistryChanged: versions were registered or deleted all the while.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        contexts = remote.contexts()
        every = read_versions(remote, contexts, steps)
        versions = sort_by_references(selection.versions(list(every.values())))
        selected = selection.selected_contexts((*contexts, GLOBAL_CONTEXT))
        scopes = scopes_of(selected, {version.subject for version in versions})
        configs, modes = read_configs(remote, scopes, steps), read_modes(remote, scopes, steps)
        if read_versions(remote, remote.contexts(), steps) == every:
            return Snapshot(tuple(_nonempty_contexts(selected, versions, {*configs, *modes})), versions, configs, modes)
        logger.warning("registry_changed attempt=%d url=%s", attempt, remote.url)
    raise RegistryChanged(
        f"{remote.url} was written to while it was read, {ATTEMPTS_MAX} times; "
        "set its mode to READONLY for the time and export again"
    )


def _nonempty_contexts(
    contexts: Iterable[str], versions: Iterable[ExportedVersion], scopes: Collection[str]
) -> Iterator[str]:
    """Without those that hold nothing any more: the API cannot make an empty context."""
    held = {version.context for version in versions}
    for context in contexts:
        if context in (DEFAULT_CONTEXT, GLOBAL_CONTEXT, *held) or scope_of_context(context) in scopes:
            yield context


def read_versions(
    remote: RemoteRegistry, contexts: Iterable[str], steps: ProgressCallback
) -> dict[SubjectVersion, ExportedVersion]:
    """All versions of the contexts."""
    found: dict[SubjectVersion, ExportedVersion] = {}
    count = 0

    def progress(more: int) -> None:
        nonlocal count
        count += more
        steps("reading versions", count, 0)

    for context in contexts:
        found.update(remote.versions(context, progress))
    return found


def read_configs(remote: RemoteRegistry, scopes: Sequence[str], steps: ProgressCallback) -> dict[str, str]:
    """The configurations that scopes have of their own; the API has no list of them."""
    return _read_scopes(remote.config, scopes, lambda done: steps("reading configurations", done, len(scopes)))


def read_modes(remote: RemoteRegistry, scopes: Sequence[str], steps: ProgressCallback) -> dict[str, str]:
    """The modes that scopes have of their own; the API has no list of them either."""
    return _read_scopes(remote.mode, scopes, lambda done: steps("reading modes", done, len(scopes)))


def sort_by_references(versions: Sequence[ExportedVersion]) -> tuple[ExportedVersion, ...]:
    """Versions after those that they refer to; what runs in a circle comes last as it is, and is logged."""
    try:
        return ordered_by_references(versions)
    except CircularReferences as error:
        stuck = set(error.nodes)
        logger.warning("references_circular versions=%d", len(stuck))
        rest = [version for version in versions if version.key in stuck]
        return (*ordered_by_references(version for version in versions if version.key not in stuck), *rest)


def _read_scopes(
    ask: Callable[[str], Answer | None], scopes: Sequence[str], progress: Callable[[int], None]
) -> dict[str, Answer]:
    found: dict[str, Answer] = {}
    with ThreadPoolExecutor(PARALLEL_REQUESTS_MAX) as pool:
        for done, (scope, answer) in enumerate(zip(scopes, pool.map(ask, scopes), strict=True), 1):
            if answer is not None:
                found[scope] = answer
            progress(done)
    return found
