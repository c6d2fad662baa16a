"""Deletes staging that nobody can decide any more.

Age alone proves nothing: a driver may be paused for longer, a clock may jump. So cleaning is a decision. It names
the work ids whose undecided staging it voids, which is a conflict for them from then on, and it is itself in
conflict with any of them that was decided in between. Only what a decision has voided is deleted; age only says
when to offer that.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from headrace.loader.commit.decision import Decision, DecisionKind
from headrace.loader.commit.decision_log import DecisionLog
from headrace.loader.storage.protocols import Staging

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Work ids whose staging was deleted."""

    works: tuple[str, ...]


def clean(log: DecisionLog, staging: Staging, *, work_id: str, build: str, now_ms: int, age_ms: int) -> Cleaned:
    """Voids undecided work that nothing has touched for `age_ms`, and deletes all voided staging.

    Args:
        work_id: of the cleaning itself.

    Raises:
        BadDecision, StorageError, OSError: see `DecisionLog.offer`.
    """
    staged = staging.works()
    state = log.read_state()
    # Asked before the offer: what is decided in between makes the offer a conflict.
    undecided = {work for work in staged - state.works if not state.is_voided(work)}
    old = frozenset(work for work in undecided if staging.is_older(work, now_ms, age_ms))
    if old:
        offered = log.offer(_voiding(old, work_id, build, now_ms, state.slot))
        state = offered.state
        if offered.conflict is not None:
            logger.info("cleaning_refused reason=%s", offered.conflict)
    removable = tuple(sorted(work for work in staged if state.is_voided(work)))
    for work in removable:
        staging.drop(work)
        logger.info("staging_removed work_id=%s", work)
    log.storage.sweep(now_ms, age_ms)
    log.slots.pack(state.slot)
    return Cleaned(removable)


def _voiding(works: frozenset[str], work_id: str, build: str, now_ms: int, planned_after: int) -> Decision:
    return Decision(0, DecisionKind.CLEAN, work_id, now_ms, build, {}, works, planned_after=planned_after)


def published_works(log: DecisionLog, staging: Staging) -> frozenset[str]:
    """Decided work that has nothing left in staging, for the next decision to say so.

    Staging is looked at after the state was read: what is decided has been staged before.
    """
    works = log.read_state().works
    return works - staging.works()
