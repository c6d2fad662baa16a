"""Imports a snapshot into a registry: reads the target's content and runs the planned actions."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.registry.domain import SubjectVersion
from headrace.registry.errors import (
    AccessDenied,
    ImportStopped,
    InvalidResponse,
    OperationNotPermitted,
    RegistryError,
    RegistryUnavailable,
    ServiceError,
    StoreError,
)
from headrace.registry.names import GLOBAL_CONTEXT
from headrace.registry.transfer.export import ProgressCallback, read_configs, read_modes, read_versions
from headrace.registry.transfer.parallel import run_parallel
from headrace.registry.transfer.plan import (
    ImportAction,
    ImportPlan,
    ImportProblem,
    RegisterVersion,
    SetConfig,
    SetMode,
    TargetContent,
    VersionAction,
    describe_version,
    plan_import,
)
from headrace.registry.transfer.remote import RemoteRegistry
from headrace.registry.transfer.snapshot import ExportedVersion, Snapshot, scopes_of

REJECTED_MAX: Final = 1000  # more rejections mean that the target is wrong, not single versions
FATAL_ERRORS: Final = (RegistryUnavailable, StoreError, AccessDenied, InvalidResponse, ImportStopped)
"""Errors that do not concern a single version, so that the next version would fail as well."""


@dataclass
class ImportResult:
    """The result of an import. `rejected` are the versions that were not imported: the target rejected them or a
    version that they refer to. `is_finished` says that configurations and modes were set."""

    done: list[ImportAction] = field(default_factory=list)
    rejected: list[ImportProblem] = field(default_factory=list)
    is_finished: bool = False


def read_target(remote: RemoteRegistry, snapshot: Snapshot, steps: ProgressCallback) -> TargetContent:
    """Reads the content of the registry `remote`, the target of an import, in the contexts and scopes of a snapshot;
    `steps` receives the progress."""
    contexts = sorted({version.context for version in snapshot.versions})
    outer_scopes = scopes_of({*snapshot.contexts, *contexts, GLOBAL_CONTEXT}, ())
    return TargetContent(
        read_versions(remote, contexts, steps),
        read_configs(remote, snapshot.scopes, steps),
        read_modes(remote, sorted({*outer_scopes, *snapshot.scopes}), steps)[0],
        remote.schema_types(),
    )


def plan_importable(snapshot: Snapshot, target: TargetContent) -> tuple[Snapshot, ImportPlan, list[ImportProblem]]:
    """Plans an import without the versions that the target cannot take.

    Returns the snapshot without these versions, its plan, and the problems of the omitted versions. The plan has the
    problems that cannot be solved by omitting versions.
    """
    skipped: list[ImportProblem] = []
    while True:
        plan = plan_import(snapshot, target)
        dropped = {problem.key for problem in plan.problems if problem.can_be_skipped and problem.key}
        if not dropped:
            return snapshot, plan, skipped
        skipped += [problem for problem in plan.problems if problem.key in dropped]
        snapshot = replace(
            snapshot, versions=tuple(version for version in snapshot.versions if version.key not in dropped)
        )


def execute_actions(
    remote: RemoteRegistry, actions: Sequence[ImportAction], steps: ProgressCallback, *, skip_rejected: bool
) -> ImportResult:
    """Runs actions in order. Consecutive actions on versions run in parallel, except actions on the same subject and on
    subjects that refer to each other.

    Versions that the target rejects are skipped, together with the versions that refer to them. Unless `skip_rejected`,
    configurations and modes are then not set, so that a later import can complete the content: the target stays in
    IMPORT mode, in which no other client takes the missing ids.

    Args:
        remote: the target.
        actions: from `plan_importable`.
        steps: receives the progress.
        skip_rejected: sets configurations and modes even if versions were rejected.

    Raises:
        RegistryError: an error that does not concern a single version.
    """
    result = ImportResult()
    importer = _VersionImporter(remote)

    def progress(done: int) -> None:
        steps("importing", len(result.done) + done, len(actions))

    for is_content, group in itertools.groupby(actions, lambda action: isinstance(action, VersionAction)):
        if is_content:
            tasks = [action for action in group if isinstance(action, VersionAction)]
            run_parallel(tasks, importer.apply, progress)
            rejected = importer.rejected
            keys = dict.fromkeys(action.version.key for action in tasks if action.version.key in rejected)
            result.rejected += [rejected[key] for key in keys]
            result.done += [action for action in tasks if action.version.key not in rejected]
        elif result.rejected and not skip_rejected:
            return result
        else:
            for action in group:
                _set(remote, action)
                result.done.append(action)
                progress(0)
    result.is_finished = not result.rejected or skip_rejected
    return result


def find_missing_versions(
    remote: RemoteRegistry, snapshot: Snapshot, steps: ProgressCallback, skipped: Collection[SubjectVersion]
) -> list[str]:
    """Reads the target after an import. Returns a message for each version of the snapshot that is missing there, or
    that has another id or deleted flag.

    Args:
        remote: the target.
        snapshot: the imported versions.
        steps: receives the progress.
        skipped: versions that are not checked.
    """
    existing = read_versions(remote, sorted({version.context for version in snapshot.versions}), steps)
    differences = []
    for version in snapshot.versions:
        found = existing.get(version.key)
        if version.key in skipped or (
            found is not None and (found.schema_id, found.deleted) == (version.schema_id, version.deleted)
        ):
            continue
        state = "is missing in the target"
        if found is not None:
            state = f"has {_id_and_state(found)} in the target, expected {_id_and_state(version)}"
        differences.append(f"{describe_version(version.key)} {state} after the import")
    return differences


def _id_and_state(version: ExportedVersion) -> str:
    return f"id {version.schema_id} ({'deleted' if version.deleted else 'not deleted'})"


class _VersionImporter:
    """Registers or deletes versions in the target registry, and collects the reasons of rejections in `rejected`."""

    def __init__(self, remote: RemoteRegistry) -> None:
        self._remote = remote
        self.rejected: dict[SubjectVersion, ImportProblem] = {}

    def apply(self, action: VersionAction) -> None:
        """Registers or deletes one version in the target. If the target rejects that, or has rejected a version that
        the version refers to, records the reason in `rejected`.

        Raises:
            RegistryError: the next action would fail as well, for example because the target is not reachable.
            ImportStopped: the target has rejected more than `REJECTED_MAX` versions.
        """
        key = action.version.key
        if key in self.rejected:
            return  # the version was not registered
        try:
            reason = self._missing_target(action) if isinstance(action, RegisterVersion) else ""
            if not reason:
                self._call(action)
                return
        except FATAL_ERRORS:
            raise
        except ServiceError as error:
            if error.status in (401, 403) or not 400 <= error.status < 500:
                raise
            reason = str(error)
        except RegistryError as error:
            reason = str(error)
        self.rejected[key] = ImportProblem(f"{describe_version(key)}: {reason}", key)
        if len(self.rejected) > REJECTED_MAX:
            raise ImportStopped(
                f"the target rejected more than {REJECTED_MAX} versions; check that registry.url is the intended "
                f"target; the last rejection was {describe_version(key)}: {reason}"
            )

    def _call(self, action: VersionAction) -> None:
        if isinstance(action, RegisterVersion):
            self._remote.register(action.version)
        else:
            self._remote.soft_delete(action.version.key)

    def _missing_target(self, action: VersionAction) -> str:
        cause = next((target for target in action.version.targets if target in self.rejected), None)
        return "" if cause is None else f"refers to {describe_version(cause)}, which was not imported"


def _set(remote: RemoteRegistry, action: ImportAction) -> None:
    try:
        if isinstance(action, SetMode):
            remote.set_mode(action.scope, action.mode, force=action.force)
        elif isinstance(action, SetConfig):
            remote.set_config(action.scope, json.loads(action.changes) if action.changes else None)
    except OperationNotPermitted as error:
        raise ImportStopped(
            f"the target rejected {action}: {error}; correct the cause and run the import again, which continues it"
        ) from error
