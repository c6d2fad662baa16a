"""Deletes staging that nobody can decide any more.

Age alone proves nothing: a driver may be paused for longer, a clock may jump. So cleaning is a decision. It names
the work ids whose undecided staging it voids, which is a conflict for them from then on, and it is itself in
conflict with any of them that was decided in between. Only what a decision has voided is deleted; age only says
when to offer that.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from headrace.loader.decide.decision import Decision, DecisionKind
from headrace.loader.decide.decision_log import STAGING_FOLDER, DecisionLog, staging_path
from headrace.loader.decide.storage import TEMPORARY_FOLDER, LocalStorage

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Work ids whose staging was deleted."""

    works: tuple[str, ...]


def clean(log: DecisionLog, *, work_id: str, build: str, now_ms: int, age_ms: int) -> Cleaned:
    """Voids undecided work that nothing has touched for `age_ms`, and deletes all voided staging.

    Args:
        work_id: of the cleaning itself.

    Raises:
        BadDecision, StorageError, OSError: see `DecisionLog.offer`.
    """
    storage = log.storage
    staged = frozenset(storage.children(STAGING_FOLDER))
    state = log.read_state()
    # Asked before the offer: what is decided in between makes the offer a conflict.
    old = frozenset(
        work for work in staged - state.works - state.voided if _is_older(storage, staging_path(work), now_ms, age_ms)
    )
    if old:
        offered = log.offer(Decision(0, DecisionKind.CLEAN, work_id, now_ms, build, {}, old))
        state = offered.state
        if offered.conflict is not None:
            logger.info("cleaning_refused reason=%s", offered.conflict)
    removable = tuple(sorted(staged & state.voided))
    for work in removable:
        storage.remove_tree(staging_path(work))
        logger.info("staging_removed work_id=%s", work)
    for name in storage.children(TEMPORARY_FOLDER):
        # Whoever still wants such a file finds it gone, and its put fails without having made anything.
        if _is_older(storage, f"{TEMPORARY_FOLDER}/{name}", now_ms, age_ms):
            storage.remove(f"{TEMPORARY_FOLDER}/{name}")
    log.slots.pack(state.slot)
    return Cleaned(removable)


def published_works(log: DecisionLog) -> frozenset[str]:
    """Decided work that has nothing left in staging, for the next decision to say so.

    Staging is looked at after the state was read: what is decided has been staged before.
    """
    works = log.read_state().works
    return works - frozenset(log.storage.children(STAGING_FOLDER))


def _is_older(storage: LocalStorage, path: str, now_ms: int, age_ms: int) -> bool:
    modified = storage.modified_at_ms(path)
    return modified is not None and now_ms - modified > age_ms
