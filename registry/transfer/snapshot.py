"""The content of an export: versions in an importable order, configurations and modes."""

from __future__ import annotations

import heapq
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar

from headrace.registry.domain import SchemaReference, SubjectVersion
from headrace.registry.names import ALL_CONTEXTS_SCOPE, GLOBAL_CONTEXT, context_of, qualified, split_subject

DEFAULT_SCOPE: Final = ":.:"
"""Scope of the default context's configuration and mode: `/config` and `/mode` without a subject."""

Node = TypeVar("Node", bound=Hashable)


class CircularReferences(ValueError):
    """Raised by `topological_order` when nodes depend on each other in a circle. `nodes` are these nodes and all nodes
    that depend on them."""

    def __init__(self, nodes: Sequence[Any]) -> None:
        self.nodes = nodes
        super().__init__("nodes depend on each other in a circle")


@dataclass(frozen=True, slots=True)
class ExportedVersion:
    """A version of a subject. `subject` is qualified; `metadata` and `rule_set` are JSON text, or "" if absent."""

    subject: str
    version: int
    schema_id: int
    text: str
    schema_type: str = "AVRO"
    references: tuple[SchemaReference, ...] = ()
    metadata: str = ""
    rule_set: str = ""
    deleted: bool = False

    @property
    def key(self) -> SubjectVersion:
        return SubjectVersion(self.subject, self.version)

    @property
    def context(self) -> str:
        return context_of(self.subject)

    @property
    def targets(self) -> tuple[SubjectVersion, ...]:
        """The referenced versions: in the version's own context, unless a reference names another. References to the
        latest version are omitted."""
        return tuple(
            SubjectVersion(self._subject_of(item), item.version) for item in self.references if item.version > 0
        )

    def _subject_of(self, reference: SchemaReference) -> str:
        if reference.subject.startswith(":."):
            return qualified(*split_subject(reference.subject))
        return qualified(self.context, reference.subject)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of an export.

    `configs` (JSON text) and `modes` have the scopes' own settings; a scope is a subject, or a context as `:.context:`.
    They are complete for the subjects of `versions` (except those with an empty name) and for `contexts`, have nothing
    about other contexts, and may have the settings of subjects without versions, such as aliases.
    """

    contexts: tuple[str, ...] = ()
    versions: tuple[ExportedVersion, ...] = ()
    configs: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)

    @property
    def subjects(self) -> list[str]:
        """Unique subjects, sorted by context and name."""
        return sorted({version.subject for version in self.versions}, key=split_subject)

    @property
    def scopes(self) -> list[str]:
        """The scopes that the export covers with their own configuration and mode, sorted by context and name: the
        scopes of `contexts`, the subjects of `versions`, and other subjects with settings."""
        scopes = {*scopes_of(self.contexts, self.subjects), *self.configs, *self.modes}
        return sorted(scopes, key=split_subject)


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a registry that an export or import contains.

    Args:
        contexts: limits the part to these contexts; empty means all.
        subjects: limits the part to subjects whose name, without context, matches one of these shell patterns; empty
            means all.
    """

    contexts: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()

    def selected_contexts(self, contexts: Iterable[str]) -> tuple[str, ...]:
        """Returns, sorted, the given contexts whose own configuration and mode are exported. The result is empty if the
        export is limited to some subjects."""
        return () if self.subjects else tuple(sorted(item for item in contexts if self._includes_context(item)))

    def subject_scopes(self, scopes: Iterable[str]) -> list[str]:
        """Returns the selected subjects among scopes."""
        return [scope for scope in scopes if not is_scope_of_context(scope) and self._includes_subject(scope)]

    def versions(self, versions: Sequence[ExportedVersion]) -> list[ExportedVersion]:
        """The selected versions and all versions that they refer to, in the given order."""
        by_key = {version.key: version for version in versions}
        waiting = [version for version in versions if self._includes_subject(version.subject)]
        selected = set()
        while waiting:
            version = waiting.pop()
            if version.key not in selected:
                selected.add(version.key)
                waiting += [by_key[target] for target in version.targets if target in by_key]
        return [version for version in versions if version.key in selected]

    def select_from(self, snapshot: Snapshot) -> Snapshot:
        """Returns the selected part of an export: versions, and the configurations and modes of their scopes."""
        versions = tuple(self.versions(snapshot.versions))
        contexts = self.selected_contexts(snapshot.contexts)
        subjects = {*(version.subject for version in versions), *self.subject_scopes(snapshot.scopes)}
        scopes = set(scopes_of(contexts, subjects))
        return Snapshot(
            contexts,
            versions,
            {scope: text for scope, text in snapshot.configs.items() if scope in scopes},
            {scope: mode for scope, mode in snapshot.modes.items() if scope in scopes},
        )

    def _includes_context(self, context: str) -> bool:
        return not self.contexts or context in self.contexts

    def _includes_subject(self, subject: str) -> bool:
        context, name = split_subject(subject)
        return self._includes_context(context) and (
            not self.subjects or any(fnmatchcase(name, pattern) for pattern in self.subjects)
        )


def scope_of_context(context: str) -> str:
    return ALL_CONTEXTS_SCOPE if context == GLOBAL_CONTEXT else f":{context}:"


def is_scope_of_context(scope: str) -> bool:
    """Whether a scope is a context or all contexts, as opposed to a single subject."""
    return scope == scope_of_context(context_of(scope))


def scopes_of(contexts: Iterable[str], subjects: Iterable[str]) -> list[str]:
    """The scopes of these contexts and subjects, sorted by context and name. A subject with an empty name has none."""
    scopes = {scope_of_context(context) for context in contexts}
    scopes.update(subject for subject in subjects if split_subject(subject)[1])
    return sorted(scopes, key=split_subject)


def ordered_by_references(versions: Iterable[ExportedVersion]) -> tuple[ExportedVersion, ...]:
    """Orders versions by context, name and number, except that referenced versions come first.

    Raises:
        CircularReferences: `nodes` are the keys of versions with circular references, and of versions that refer to
            these.
    """
    by_key = {version.key: version for version in versions}
    predecessors = {key: [item for item in version.targets if item in by_key] for key, version in by_key.items()}
    keys = sorted(by_key, key=_sort_key)
    chained = {key: list(items) for key, items in predecessors.items()}
    for earlier, later in itertools.pairwise(keys):
        if earlier.subject == later.subject:
            chained[later].append(earlier)
    try:
        ordered = topological_order(keys, chained, _sort_key)
    except CircularReferences:
        # After permanent deletions and imports a version may refer to a later one of its subject.
        ordered = topological_order(keys, predecessors, _sort_key)
    return tuple(by_key[key] for key in ordered)


def _sort_key(key: SubjectVersion) -> tuple[str, str, int]:
    return (*split_subject(key.subject), key.version)


def topological_order(
    nodes: Collection[Node], predecessors: Mapping[Node, Collection[Node]], rank: Callable[[Node], Any]
) -> list[Node]:
    """Orders nodes by their dependencies. Of several possible next nodes takes the one with the lowest rank.

    Args:
        nodes: the nodes to order.
        predecessors: for each node, the nodes that must come before it.
        rank: returns a sortable key of a node.

    Raises:
        CircularReferences: nodes depend on each other.
    """
    after: dict[Node, list[Node]] = defaultdict(list)
    missing = {node: set(predecessors.get(node, ())) for node in nodes}
    for node, needed in missing.items():
        for other in needed:
            after[other].append(node)
    count = itertools.count()  # breaks ties, because nodes cannot be compared
    ready = [(rank(node), next(count), node) for node in nodes if not missing[node]]
    heapq.heapify(ready)
    ordered: list[Node] = []
    while ready:
        _, _, node = heapq.heappop(ready)
        ordered.append(node)
        for other in after[node]:
            missing[other].discard(node)
            if not missing[other]:
                heapq.heappush(ready, (rank(other), next(count), other))
    if len(ordered) < len(nodes):
        done = set(ordered)
        raise CircularReferences([node for node in nodes if node not in done])
    return ordered


def json_text(value: Any) -> str:
    """Canonical JSON text, independent of the order of keys; "" for None and empty values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")) if value else ""
