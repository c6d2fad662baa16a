"""Reads a registry into a snapshot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from headrace.registry.domain import Mode, SubjectVersion
from headrace.registry.errors import RegistryChanged
from headrace.registry.names import (
    DEFAULT_CONTEXT,
    GLOBAL_CONTEXT,
    context_of,
    quoted_for_log,
)
from headrace.registry.transfer.parallel import PARALLEL_REQUESTS_MAX
from headrace.registry.transfer.remote import RemoteRegistry
from headrace.registry.transfer.snapshot import (
    CircularReferences,
    ExportedVersion,
    Selection,
    Snapshot,
    is_scope_of_context,
    ordered_by_references,
    scope_of_context,
    scopes_of,
)

logger = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 3  # to read a list of versions that does not change meanwhile
Value = TypeVar("Value")
ProgressCallback = Callable[[str, int, int], None]
"""Reports progress. Receives the name of a step, the number of finished items, and their total (0: unknown)."""


def read_registry(remote: RemoteRegistry, selection: Selection, steps: ProgressCallback) -> Snapshot:
    """Reads a registry, or a part of it and the versions that the part refers to.

    Args:
        remote: the registry.
        selection: the part.
        steps: receives the progress.

    Raises:
        RegistryChanged: versions were registered or deleted during each attempt.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        listed_contexts = remote.contexts()
        with_settings = [scope for scope in remote.scopes_with_settings(listed_contexts) if scope]
        contexts = {*listed_contexts, *map(context_of, filter(is_scope_of_context, with_settings))} - {GLOBAL_CONTEXT}
        all_versions = read_versions(remote, sorted(contexts), steps)
        versions = sort_by_references(selection.versions(list(all_versions.values())))
        selected = selection.selected_contexts((*contexts, GLOBAL_CONTEXT))
        subjects = {*(version.subject for version in versions), *selection.subject_scopes(with_settings)}
        scopes = scopes_of(selected, subjects)
        configs, (modes, hidden) = read_configs(remote, scopes, steps), read_modes(remote, scopes, steps)
        if read_versions(remote, sorted({*contexts, *remote.contexts()}), steps) == all_versions:
            if hidden:
                logger.warning(
                    "own modes are hidden by READONLY_OVERRIDE of the default context and are not in the export; "
                    "remove the override for the export: scopes=%d url=%s",
                    hidden,
                    remote.url,
                )
            return Snapshot(tuple(_nonempty_contexts(selected, versions, {*configs, *modes})), versions, configs, modes)
        logger.warning("registry changed during export: attempt=%d url=%s", attempt, remote.url)
    raise RegistryChanged(
        f"{remote.url} changed during each of {ATTEMPTS_MAX} attempts to read it; "
        "set its mode to READONLY for the export and try again"
    )


def _nonempty_contexts(
    contexts: Iterable[str], versions: Iterable[ExportedVersion], scopes: Collection[str]
) -> Iterator[str]:
    """Yields the contexts that have a version or settings of their own. Empty contexts are omitted, because the API
    cannot create them. The default context and `GLOBAL_CONTEXT` (all contexts) always remain.

    Args:
        contexts: the contexts to choose from.
        versions: all versions of the export.
        scopes: the scopes that have their own configuration or mode.
    """
    held = {version.context for version in versions}
    for context in contexts:
        if context in (DEFAULT_CONTEXT, GLOBAL_CONTEXT, *held) or scope_of_context(context) in scopes:
            yield context


def read_versions(
    remote: RemoteRegistry, contexts: Iterable[str], steps: ProgressCallback
) -> dict[SubjectVersion, ExportedVersion]:
    """Reads all versions of the contexts from the registry `remote`, keyed by subject and version number; `steps`
    receives the progress."""
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
    """Reads the scopes' own configurations from the registry `remote`, as JSON text by scope; `steps` receives the
    progress.

    The API cannot list them, so each scope is read. Scopes without a configuration are omitted.
    """
    return _read_scopes(remote.config, scopes, lambda done: steps("reading configurations", done, len(scopes)))


def read_modes(remote: RemoteRegistry, scopes: Sequence[str], steps: ProgressCallback) -> tuple[dict[str, str], int]:
    """Reads the scopes' own modes from the registry `remote`; `steps` receives the progress.

    The API cannot list them, so each scope is read. Scopes without a mode are omitted. So are scopes whose own mode is
    hidden: if the default context has READONLY_OVERRIDE, releases before 8.2 return that for every scope.

    Returns:
        The modes by scope, and the number of scopes with a hidden mode.
    """
    found = _read_scopes(remote.mode, scopes, lambda done: steps("reading modes", done, len(scopes)))
    default = scope_of_context(DEFAULT_CONTEXT)
    others = [scope for scope in scopes if scope != default]
    is_hidden = all(found.get(scope) == Mode.READONLY_OVERRIDE for scope in others)
    if not (others and is_hidden and remote.mode(default) == Mode.READONLY_OVERRIDE):
        return found, 0
    return {scope: mode for scope, mode in found.items() if scope == default}, len(others)


def sort_by_references(versions: Sequence[ExportedVersion]) -> tuple[ExportedVersion, ...]:
    """Sorts versions so that each version comes after the versions that it refers to. Versions with circular
    references, and versions that refer to these, come last and are logged."""
    try:
        return ordered_by_references(versions)
    except CircularReferences as error:
        circular_keys = set(error.nodes)
        circular = [version for version in versions if version.key in circular_keys]
        logger.warning(
            "versions with circular references are exported last: versions=%d first_subject=%s first_version=%d",
            len(circular),
            quoted_for_log(circular[0].subject),
            circular[0].version,
        )
        return (*ordered_by_references(version for version in versions if version.key not in circular_keys), *circular)


def _read_scopes(
    read: Callable[[str], Value | None], scopes: Sequence[str], progress: Callable[[int], None]
) -> dict[str, Value]:
    found: dict[str, Value] = {}
    with ThreadPoolExecutor(PARALLEL_REQUESTS_MAX) as pool:
        for done, (scope, response) in enumerate(zip(scopes, pool.map(read, scopes), strict=True), 1):
            if response is not None:
                found[scope] = response
            progress(done)
    return found
