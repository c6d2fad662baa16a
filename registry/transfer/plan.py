"""What an import has to do, decided from the file and from what the target holds, before anything is written.

An import that was killed is finished by planning again: what is there already needs no action.

The order of the actions, and why:
1. Aliases of subjects that are written to are cleared, since they would lead the calls elsewhere.
2. IMPORT mode: of a whole context where it is empty, so that nobody else takes an id meanwhile; otherwise of each
   subject that is written to, so that the others stay writable. Setting it with `force` keeps what is there; without,
   the target clears what is deleted softly, which is why that is done only where there is nothing at all.
3. Versions, after those they refer to. Then soft deletions, referring versions first, because a version that is
   referred to cannot be deleted. Only where a version that stays refers to a deleted one, that one is deleted before
   anything that refers to it is registered.
4. Configurations, which must not get in the way of the above.
5. Modes, last, because READONLY forbids all of the above.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.registry.domain import Mode, SubjectVersion
from headrace.registry.names import EVERYWHERE, context_of
from headrace.registry.transfer.content import Contents
from headrace.registry.transfer.snapshot import (
    DEFAULT_SCOPE,
    Circular,
    ExportedVersion,
    Snapshot,
    in_order,
    json_text,
    scope_of_context,
)

CHANGED_NAMES: Final[Mapping[str, str]] = {"compatibilityLevel": "compatibility"}
"""Keys of a configuration that a change calls otherwise than the answer."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the target holds of the contexts and scopes that a snapshot is about.

    `modes` has also those of the contexts that the snapshot says nothing of, since they hold for its subjects.
    """

    versions: Mapping[SubjectVersion, ExportedVersion] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)
    schema_types: frozenset[str] = frozenset({"AVRO"})


@dataclass(frozen=True, slots=True)
class SetMode:
    """`mode` None removes the scope's own mode."""

    scope: str
    mode: str | None
    force: bool = False

    def __str__(self) -> str:
        return f"{scope_words(self.scope)}: " + (f"mode {self.mode}" if self.mode else "remove the mode")


@dataclass(frozen=True, slots=True)
class SetConfig:
    """`changes` is JSON text; "" removes the scope's own configuration."""

    scope: str
    changes: str

    def __str__(self) -> str:
        return f"{scope_words(self.scope)}: " + (
            f"configuration {self.changes}" if self.changes else "remove the configuration"
        )


@dataclass(frozen=True, slots=True)
class VersionAction:
    """Something done with one version; it changes `written` and rests on `read`, both subjects."""

    version: ExportedVersion

    @property
    def written(self) -> str:
        return self.version.subject

    @property
    def read(self) -> frozenset[str]:
        return frozenset(key.subject for key in self.version.targets)


class Register(VersionAction):
    __slots__ = ()

    def __str__(self) -> str:
        return f"{version_words(self.version.key)}: register with id {self.version.schema_id}"


class DeleteSoftly(VersionAction):
    __slots__ = ()

    def __str__(self) -> str:
        return f"{version_words(self.version.key)}: delete softly"


Action = SetMode | SetConfig | Register | DeleteSoftly


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something cannot be imported. `key` is the version, where it is one's."""

    sentence: str
    key: SubjectVersion | None = None
    can_be_left_out: bool = False


@dataclass(frozen=True, slots=True)
class ImportPlan:
    actions: tuple[Action, ...] = ()
    problems: tuple[Problem, ...] = ()


def plan_import(snapshot: Snapshot, target: Target) -> ImportPlan:
    """The actions that make the target hold what the snapshot does, or what stands in their way.

    What the target holds besides stays as it is.
    """
    problems = list(_problems(snapshot, target))
    if problems:
        return ImportPlan(problems=tuple(problems))
    try:
        content = _content_actions(snapshot, target)
    except Circular as error:
        key = error.nodes[0].version.key
        sentence = f"{version_words(key)} refers to itself through others, so no version of them can come first"
        return ImportPlan(problems=(Problem(sentence, key),))
    scopes = _Scopes(snapshot, target)
    opening = list(scopes.opened_for(content))
    return ImportPlan((*opening, *content, *scopes.configs(), *scopes.modes()))


def scope_words(scope: str) -> str:
    """A scope as people call it."""
    if scope == EVERYWHERE:
        return "all contexts"
    context = context_of(scope)
    return f"context {context}" if scope == scope_of_context(context) else f"subject {scope}"


def version_words(key: SubjectVersion) -> str:
    return f"subject {key.subject} version {key.version}"


def _problems(snapshot: Snapshot, target: Target) -> Iterator[Problem]:
    yield from _unknown_types(snapshot, target)
    yield from _dangling(snapshot, target)
    yield from _clashes(snapshot, target)
    yield from _locked(snapshot, target)


def _unknown_types(snapshot: Snapshot, target: Target) -> Iterator[Problem]:
    for version in snapshot.versions:
        if version.schema_type not in target.schema_types:
            yield Problem(
                f"{version_words(version.key)} is of type {version.schema_type}; the target has "
                f"{', '.join(sorted(target.schema_types))}",
                version.key,
                can_be_left_out=True,
            )


def _dangling(snapshot: Snapshot, target: Target) -> Iterator[Problem]:
    there = {version.key for version in snapshot.versions} | set(target.versions)
    for version in snapshot.versions:
        for key in version.targets:
            if key not in there and version.key not in target.versions:
                yield Problem(
                    f"{version_words(version.key)} refers to {version_words(key)}, which is neither in the file nor in "
                    "the target",
                    version.key,
                    can_be_left_out=True,
                )


def _clashes(snapshot: Snapshot, target: Target) -> Iterator[Problem]:
    """Numbers and ids that stand for different schemas in the file and in the target, or twice in the file.

    One schema under several ids is none: merged registries have such, and every id is still that of its messages.
    """
    contents = Contents(target.versions, {version.key: version for version in snapshot.versions})
    owners = {(version.context, version.schema_id): contents.of_target(version) for version in target.versions.values()}
    taken = dict(owners)
    for version in snapshot.versions:
        yield from _version_clash(version, target)
        here = contents.of_file(version)
        owner = taken.setdefault((version.context, version.schema_id), here)
        if not owner.equals(here):
            where = "target" if (version.context, version.schema_id) in owners else "file"
            yield Problem(
                f"id {version.schema_id} in context {version.context} is {version_words(version.key)} in the file and "
                f"{version_words(owner.version.key)} in the {where}, and their schemas differ",
                version.key,
            )


def _version_clash(version: ExportedVersion, target: Target) -> Iterator[Problem]:
    there = target.versions.get(version.key)
    if there is not None and there.schema_id != version.schema_id:
        yield Problem(
            f"{version_words(version.key)} has id {version.schema_id} in the file and {there.schema_id} in the target",
            version.key,
        )


def _locked(snapshot: Snapshot, target: Target) -> Iterator[Problem]:
    """Subjects that somebody made read-only in the target although something of theirs is to change."""
    told = set()
    for version in snapshot.versions:
        scope, mode = mode_in_force(version.subject, target.modes)
        if mode.is_readonly and scope not in told and _differs(version, target):
            told.add(scope)
            yield Problem(
                f"{scope_words(scope)} is {mode} in the target, and {version_words(version.key)} is to be "
                f"{'deleted' if version.key in target.versions else 'registered'}; set its mode to READWRITE first"
            )


def mode_in_force(subject: str, modes: Mapping[str, str]) -> tuple[str, Mode]:
    """The mode that holds for a subject, and the scope that has it."""
    for scope in (subject, scope_of_context(context_of(subject)), EVERYWHERE):
        if scope in modes:
            return scope, Mode(modes[scope])
    return EVERYWHERE, Mode.READWRITE


def _differs(version: ExportedVersion, target: Target) -> bool:
    there = target.versions.get(version.key)
    return there is None or there.deleted != version.deleted


def _content_actions(snapshot: Snapshot, target: Target) -> list[Register | DeleteSoftly]:
    """Registrations and deletions in an order in which the target does them (see the module, 3).

    Raises:
        Circular: references run in a circle.
    """
    registered, deleted = _wanted(snapshot, target)
    same_id = defaultdict(list)
    for version in snapshot.versions:
        same_id[version.subject, version.schema_id].append(version.key)
    # Deleted versions that a version refers to which stays: nobody may refer to them yet when they are deleted.
    kept = {key for version in snapshot.versions if not version.deleted for key in version.targets if key in deleted}
    before: dict[Register | DeleteSoftly, list[Register | DeleteSoftly]] = defaultdict(list)
    for key, removal in deleted.items():
        # A version that is registered again under its id would push out a deleted one before it.
        again = same_id[key.subject, removal.version.schema_id]
        before[removal] += [registered[item] for item in again if item in registered]
        for item in removal.version.targets:
            if item in deleted and item not in kept:
                before[deleted[item]].append(removal)
    for action in registered.values():
        for item in action.version.targets:
            first = deleted[item] if item in kept else registered.get(item)
            if first is not None:
                before[action].append(first)
    position = {version.key: number for number, version in enumerate(snapshot.versions)}

    def rank(action: Register | DeleteSoftly) -> tuple[int, int]:
        if isinstance(action, Register):
            return 0, position[action.version.key]
        return 1, -position[action.version.key]

    return in_order([*registered.values(), *deleted.values()], before, rank)


def _wanted(
    snapshot: Snapshot, target: Target
) -> tuple[dict[SubjectVersion, Register], dict[SubjectVersion, DeleteSoftly]]:
    """A version that is deleted in the target and not in the file is registered again, which brings it back."""
    registered, deleted = {}, {}
    for version in snapshot.versions:
        there = target.versions.get(version.key)
        if there is None or (there.deleted and not version.deleted):
            registered[version.key] = Register(version)
        if version.deleted and not (there is not None and there.deleted):
            deleted[version.key] = DeleteSoftly(version)
    return registered, deleted


class _Scopes:
    """Configurations and modes: as they are after the actions planned so far, and as they are to be."""

    def __init__(self, snapshot: Snapshot, target: Target) -> None:
        self._snapshot = snapshot
        self._occupied = {version.context for version in target.versions.values()}
        self._configs = dict(target.configs)
        self._modes = dict(target.modes)

    def opened_for(self, actions: list[Register | DeleteSoftly]) -> Iterator[Action]:
        """What lets registrations through."""
        written = [action.version.subject for action in actions]
        for subject in dict.fromkeys(written):
            if json.loads(self._configs.get(subject, "{}")).get("alias"):
                yield SetConfig(subject, json_text({"alias": None}))
                self._configs[subject] = json_text(
                    {key: value for key, value in json.loads(self._configs[subject]).items() if key != "alias"}
                )
        registered = dict.fromkeys(action.version.subject for action in actions if isinstance(action, Register))
        for context in dict.fromkeys(map(context_of, registered)):
            if context in self._snapshot.contexts and context not in self._occupied:
                yield from self._imported(scope_of_context(context), force=False)
        for subject in registered:
            yield from self._imported(subject, force=True)

    def _imported(self, scope: str, *, force: bool) -> Iterator[SetMode]:
        if mode_in_force(scope, self._modes)[1] != Mode.IMPORT:
            self._modes[scope] = Mode.IMPORT
            yield SetMode(scope, Mode.IMPORT, force)

    def configs(self) -> Iterator[SetConfig]:
        for scope in self._snapshot.scopes:
            wanted, there = self._snapshot.configs.get(scope), self._configs.get(scope)
            if scope == DEFAULT_SCOPE and wanted is None:
                continue  # Its configuration cannot be removed, and the file says nothing of it.
            if wanted is None and there is not None:
                yield SetConfig(scope, "")
            elif wanted is not None and wanted != there:
                yield SetConfig(scope, _changes(wanted, there or "{}"))

    def modes(self) -> Iterator[SetMode]:
        # Contexts after their subjects: nobody but the import writes before all of it is there.
        for scope in sorted(self._snapshot.scopes, key=lambda scope: scope == scope_of_context(context_of(scope))):
            wanted, there = self._snapshot.modes.get(scope), self._modes.get(scope)
            if scope == DEFAULT_SCOPE:
                wanted = wanted or Mode.READWRITE
            if wanted != there:
                yield SetMode(scope, wanted, force=wanted == Mode.IMPORT)


def _changes(wanted: str, there: str) -> str:
    """The change that turns one configuration into another."""
    values = {**dict.fromkeys(json.loads(there)), **json.loads(wanted)}
    return json_text({CHANGED_NAMES.get(key, key): value for key, value in values.items()})
