"""What an export holds, as values: versions in the order in which they can be imported, configurations and modes."""

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
"""Scope of what is configured for the default context: `/config` and `/mode` without a subject."""

Node = TypeVar("Node", bound=Hashable)


class CircularReferences(ValueError):
    """`nodes` cannot be put in order, because they wait for each other."""

    def __init__(self, nodes: Sequence[Any]) -> None:
        self.nodes = nodes
        super().__init__("nodes wait for each other")


@dataclass(frozen=True, slots=True)
class ExportedVersion:
    """A version of a subject; `subject` is qualified, `metadata` and `rule_set` are JSON text or "" for none."""

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
        """The versions that it refers to by number: in its own context, unless a reference names another."""
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

    `configs` (JSON text) and `modes` have what is set for a scope itself: a subject, or a context as `:.context:`.
    Of the subjects of `versions` and of `contexts` they have all; of a context that is not in `contexts` nothing is
    said.
    """

    contexts: tuple[str, ...] = ()
    versions: tuple[ExportedVersion, ...] = ()
    configs: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)

    @property
    def subjects(self) -> list[str]:
        """Without duplicates, by context and name."""
        return sorted({version.subject for version in self.versions}, key=split_subject)

    @property
    def scopes(self) -> list[str]:
        """All that `configs` and `modes` say something about, also that there is nothing."""
        return scopes_of(self.contexts, self.subjects)


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of a registry.

    Args:
        contexts: only these; empty: all.
        subjects: only those whose name, without its context, matches one of these shell patterns; empty: all.
    """

    contexts: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()

    def selected_contexts(self, contexts: Iterable[str]) -> tuple[str, ...]:
        """The contexts whose own configuration and mode belong to the part: none when subjects are picked."""
        return () if self.subjects else tuple(sorted(item for item in contexts if self._includes_context(item)))

    def versions(self, versions: Sequence[ExportedVersion]) -> list[ExportedVersion]:
        """The selected versions and, wherever they are, those that they refer to, in the order given."""
        by_key = {version.key: version for version in versions}
        waiting = [version for version in versions if self._includes_subject(version.subject)]
        taken = set()
        while waiting:
            version = waiting.pop()
            if version.key not in taken:
                taken.add(version.key)
                waiting += [by_key[target] for target in version.targets if target in by_key]
        return [version for version in versions if version.key in taken]

    def select_from(self, snapshot: Snapshot) -> Snapshot:
        """The selected part of an export."""
        versions = tuple(self.versions(snapshot.versions))
        contexts = self.selected_contexts(snapshot.contexts)
        scopes = set(scopes_of(contexts, {version.subject for version in versions}))
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


def scopes_of(contexts: Iterable[str], subjects: Iterable[str]) -> list[str]:
    """The scopes that contexts and subjects have, by context and name. A subject without a name has none of its own."""
    scopes = {scope_of_context(context) for context in contexts}
    scopes.update(subject for subject in subjects if split_subject(subject)[1])
    return sorted(scopes, key=split_subject)


def ordered_by_references(versions: Iterable[ExportedVersion]) -> tuple[ExportedVersion, ...]:
    """Versions by context, name and number, except that what a version refers to comes before it.

    Raises:
        Circular: `nodes` are the keys of versions that refer to each other.
    """
    by_key = {version.key: version for version in versions}
    before = {key: [item for item in version.targets if item in by_key] for key, version in by_key.items()}
    keys = sorted(by_key, key=_sort_key)
    chained = {key: list(items) for key, items in before.items()}
    for earlier, later in itertools.pairwise(keys):
        if earlier.subject == later.subject:
            chained[later].append(earlier)
    try:
        ordered = topological_order(keys, chained, _sort_key)
    except CircularReferences:
        # Only permanent deletions and imports can lead to this; then the numbers of a subject are not in order.
        ordered = topological_order(keys, before, _sort_key)
    return tuple(by_key[key] for key in ordered)


def _sort_key(key: SubjectVersion) -> tuple[str, str, int]:
    return (*split_subject(key.subject), key.version)


def topological_order(
    nodes: Collection[Node], before: Mapping[Node, Collection[Node]], rank: Callable[[Node], Any]
) -> list[Node]:
    """Nodes such that each comes after those in its `before`; of those that could be next, the one of lowest rank.

    Raises:
        Circular: some wait for each other.
    """
    after: dict[Node, list[Node]] = defaultdict(list)
    missing = {node: set(before.get(node, ())) for node in nodes}
    for node, needed in missing.items():
        for other in needed:
            after[other].append(node)
    count = itertools.count()  # breaks ties, so that the nodes themselves need no order
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
    """The one JSON text of a value, whatever the order of its keys; "" for None and empty values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")) if value else ""
