"""The results of commands that actions run. Pure functions from the JSON of a command."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

FACTS_MAX: Final = 50
TEXTS_MAX: Final = 20
TEXT_CHARS_MAX: Final = 500


class UnreadableOutcome(ValueError):
    """The output of a command is not the expected JSON."""


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """The changes of a command, or of its dry run.

    Attributes:
        count: number of changed messages, windows or alerts.
        facts: details, as pairs of a name and a text; the first `FACTS_MAX`.
        problems: sentences; the change is incomplete or was not made.
        notes: sentences that need no action.
        commit_number: the loader's commit; 0 for none.
    """

    count: int
    facts: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    commit_number: int = 0

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of_json(cls, text: str) -> ActionOutcome | None:
        """Returns the stored outcome; None for ""."""
        if not text:
            return None
        values = json.loads(text)
        facts = tuple((name, words) for name, words in values["facts"])
        problems, notes = tuple(values["problems"]), tuple(values["notes"])
        return cls(values["count"], facts, problems, notes, values["commit_number"])


def of_rewrite(document: Any) -> ActionOutcome:
    """The outcome of `headrace quarantine replay` or `discard`."""
    changed: Mapping[str, int] = document["loaded"] if "loaded" in document else document["discarded"]
    left: Mapping[str, int] = document["left"]
    codes = sorted({*changed, *left})
    facts = [(code, f"{changed.get(code, 0):,} of {changed.get(code, 0) + left.get(code, 0):,}") for code in codes]
    return ActionOutcome(
        sum(changed.values()),
        _facts(facts),
        _texts(document["problems"]),
        _texts(document["notes"]),
        document["commit_number"],
    )


def of_accepted_alarms(document: Any) -> ActionOutcome:
    """The outcome of `headrace accept`."""
    alarms = document["accepted"]
    return ActionOutcome(
        sum(one["count"] for one in alarms), _facts((one["kind"], f"{one['count']:,}") for one in alarms)
    )


def of_accepted_windows(document: Any) -> ActionOutcome:
    """The outcome of `headrace audit accept`."""
    facts = _facts((one["window"], f"{one['verdict']} {one['difference']:+,}") for one in document)
    return ActionOutcome(len(document), facts)


def of_silence(document: Any) -> ActionOutcome:
    """The outcome of `headrace alerts silence`."""
    alerts = document["alerts"]
    return ActionOutcome(len(alerts), _facts((one["subject"], one["kind"]) for one in alerts))


def _facts(found: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    facts = [(name[:TEXT_CHARS_MAX], words) for name, words in found]
    more = len(facts) - FACTS_MAX
    return (*facts[:FACTS_MAX], *((("more", f"{more:,}"),) if more > 0 else ()))


def _texts(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text[:TEXT_CHARS_MAX] for text in found))[:TEXTS_MAX]
