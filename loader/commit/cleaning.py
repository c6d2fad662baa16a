"""Deletes staging directories of runs that can no longer commit.

The age of a staging directory does not prove that its run is dead: a driver may be paused for longer, and a clock may
jump. Cleaning is therefore a commit. It voids runs before their staging is deleted, so that they can no longer
commit; the cleaning itself is rejected if one of them has committed in the meantime. Only staging of voided runs is
deleted; the age only decides which runs are voided.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from headrace.loader.commit.commit import Commit, CommitKind
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.storage.protocols import Staging

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CleanResult:
    """The result of `clean`: ids of the runs with deleted staging directories."""

    run_ids: tuple[str, ...]


def clean(
    log: CommitLog,
    staging: Staging,
    *,
    run_id: str,
    build: str,
    now_ms: int,
    age_ms: int,
    retired: frozenset[int] = frozenset(),
) -> CleanResult:
    """Voids the runs without a commit whose staging was not modified within `age_ms` before `now_ms`, and deletes the
    staging of all voided runs. A voided run can no longer commit. Also deletes old temporary files of the commit log,
    and archives its older commits.

    Args:
        log: the commit log; a commit in it states the voided runs.
        run_id: id of the cleaning, which is a run itself.
        build: the loader's installation, stored in the commit.
        retired: commit numbers of rewrites whose replaced files are all deleted. The commit states those that no
            commit has stated, so that later runs do not examine them.

    Returns:
        The ids of the runs whose staging was deleted.

    Raises:
        CommitLogError: the commits cannot be read.
        StorageError: the storage reports that the file of the commit exists, but it cannot be read.
        OSError: the storage failed, and it is unknown whether the commit was written.
    """
    staged = staging.run_ids()
    state = log.read_state()
    # Staging is listed before the commit. If a listed run commits in between, the cleaning is rejected.
    uncommitted = {staged_id for staged_id in staged - state.staged_runs if not state.is_voided(staged_id)}
    expired = frozenset(staged_id for staged_id in uncommitted if staging.is_older(staged_id, now_ms, age_ms))
    retired = retired.intersection(state.rewrites)
    if expired or retired:
        commit_result = log.try_commit(_clean_commit(expired, retired, run_id, build, now_ms, state.commit_number))
        state = commit_result.state
        if commit_result.conflict is not None:
            logger.info("staging_not_removed, the next load removes it reason=%s", commit_result.conflict)
    removable = tuple(sorted(staged_id for staged_id in staged if state.is_voided(staged_id)))
    for removed_id in removable:
        staging.drop(removed_id)
        logger.info("staging_removed run_id=%s", removed_id)
    log.storage.delete_temporary_files(now_ms, age_ms)
    log.commits.archive(state.commit_number)
    return CleanResult(removable)


def _clean_commit(
    voided: frozenset[str], retired: frozenset[int], run_id: str, build: str, now_ms: int, planned_after: int
) -> Commit:
    return Commit(0, CommitKind.CLEAN, run_id, now_ms, build, {}, voided, retired=retired, planned_after=planned_after)


def published_runs(log: CommitLog, staging: Staging) -> frozenset[str]:
    """Returns the ids of the committed runs without a staging directory: their files are all published. The next commit
    of a load lists these ids, and the loader's state then drops them.

    Reads the state from the commit log first, then lists staging. In the opposite order, a run that stages and commits
    in between would look published.
    """
    staged = log.read_state().staged_runs
    return staged - staging.run_ids()
