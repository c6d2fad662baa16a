"""Deletes staging that nobody can decide any more.

Age alone proves nothing: a driver may be paused for longer, a clock may jump. So cleaning is a commit. It names
the run ids whose uncommitted staging it voids, which is a conflict for them from then on, and it is itself in
conflict with any of them that was committed in between. Only what a commit has voided is deleted; age only says
when to offer that.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from headrace.loader.commit.commit import Commit, CommitKind
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.storage.protocols import Staging

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Run ids whose staging was deleted."""

    works: tuple[str, ...]


def clean(log: CommitLog, staging: Staging, *, run_id: str, build: str, now_ms: int, age_ms: int) -> Cleaned:
    """Voids uncommitted work that nothing has touched for `age_ms`, and deletes all voided staging.

    Args:
        run_id: of the cleaning itself.

    Raises:
        CorruptCommit, StorageError, OSError: see `CommitLog.try_commit`.
    """
    staged = staging.works()
    state = log.read_state()
    # Asked before the offer: what is committed in between makes the offer a conflict.
    uncommitted = {work for work in staged - state.works if not state.is_voided(work)}
    old = frozenset(work for work in uncommitted if staging.is_older(work, now_ms, age_ms))
    if old:
        commit_result = log.try_commit(_voiding(old, run_id, build, now_ms, state.commit_number))
        state = commit_result.state
        if commit_result.conflict is not None:
            logger.info("cleaning_refused reason=%s", commit_result.conflict)
    removable = tuple(sorted(work for work in staged if state.is_voided(work)))
    for work in removable:
        staging.drop(work)
        logger.info("staging_removed run_id=%s", work)
    log.storage.sweep(now_ms, age_ms)
    log.commits.pack(state.commit_number)
    return Cleaned(removable)


def _voiding(works: frozenset[str], run_id: str, build: str, now_ms: int, planned_after: int) -> Commit:
    return Commit(0, CommitKind.CLEAN, run_id, now_ms, build, {}, works, planned_after=planned_after)


def published_works(log: CommitLog, staging: Staging) -> frozenset[str]:
    """Committed work that has nothing left in staging, for the next commit to say so.

    Staging is looked at after the state was read: what is committed has been staged before.
    """
    works = log.read_state().works
    return works - staging.works()
