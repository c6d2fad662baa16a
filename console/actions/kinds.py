"""The table of actions: arguments, command, permission, and whether the change can be undone."""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from headrace.console.access import Viewer
from headrace.console.actions import outcome
from headrace.console.actions.outcome import ActionOutcome
from headrace.pipeline.status.finding import KINDS as FINDING_KINDS

NAME_CHARS_MAX: Final = 255
REASON_CHARS_MAX: Final = 1_000
CODES: Final = MappingProxyType(
    {
        "": "all reasons",
        "framing": "framing",
        "schema_not_found": "schema_not_found",
        "unreadable_schema": "unreadable_schema",
        "malformed": "malformed",
        "unreadable": "unreadable",
        "unconvertible": "unconvertible",
        "corrupt_batch": "corrupt_batch",
    }
)
"""All quarantine codes of `loader.project.quarantine`."""
WITHOUT_SCHEMA: Final = ("framing", "corrupt_batch")
"""Codes of messages that a replay never loads."""
DURATIONS: Final = MappingProxyType({"1h": "1 hour", "2h": "2 hours", "8h": "8 hours", "1d": "1 day", "7d": "7 days"})
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class InvalidArgument(ValueError):
    """The value of an argument cannot be used. The message is a sentence."""


class ActionPermission(StrEnum):
    """The permission that an action needs: `admin` on its topic, or on everything."""

    TOPIC = "topic"
    EVERYTHING = "everything"


@dataclass(frozen=True, slots=True)
class ActionArgument:
    """An argument of an action: a name, the words of its field, and the values that it may have.

    Attributes:
        choices: the permitted values and their words; empty for a text.
        pattern: the form of a text; None for any text.
        is_optional: whether it may be "".
        is_fixed: whether the form shows the value without a field.
    """

    name: str
    label: str
    choices: Mapping[str, str] = field(default_factory=dict)
    pattern: re.Pattern[str] | None = None
    is_optional: bool = False
    is_fixed: bool = False

    def check(self, text: str) -> None:
        """Raises:
        InvalidArgument: the argument may not have this value.
        """
        if not text and (self.is_optional or "" in self.choices):
            return
        if self.choices:
            is_valid = text in self.choices
        else:
            is_valid = 0 < len(text) <= NAME_CHARS_MAX and text.isprintable()
            is_valid = is_valid and (self.pattern is None or bool(self.pattern.fullmatch(text)))
        if not is_valid:
            raise InvalidArgument(f"The {self.label} is missing or cannot be used in an action.")


@dataclass(frozen=True, slots=True)
class ActionKind:
    """An action.

    Attributes:
        name: the name in URLs and in the database.
        title: its effect, as a heading.
        sentence: its effect, and the data that stays unchanged.
        verb: the word of the button that confirms it.
        unit: the changed things: message, window or alert.
        arguments: the first one is the object, a topic or the subject of a finding.
        command: the words of the command after `headrace`. A word with an empty argument is left out. Besides the
            arguments there are `reason`, `author`, `note` (reason and author), `count` (of the dry run) and `pattern`
            (matches exactly the object).
        read: returns the outcome in the command's JSON.
        permission: the permission of its users.
        undo: the command that undoes it, with the same arguments; "" without one.
        deletes: whether data is lost, so that the user must type the name of the object.
        may_be_empty: whether it makes sense if the dry run changes nothing.
    """

    name: str
    title: str
    sentence: str
    verb: str
    unit: str
    arguments: tuple[ActionArgument, ...]
    command: tuple[str, ...]
    read: Callable[[Any], ActionOutcome]
    permission: ActionPermission = ActionPermission.TOPIC
    undo: str = ""
    deletes: bool = False
    may_be_empty: bool = False

    def arguments_of(self, given: Mapping[str, str]) -> dict[str, str]:
        """Returns the arguments of the action from the fields of a form.

        Raises:
            InvalidArgument: one has a value that is not permitted.
        """
        found = {one.name: given.get(one.name, "").strip() for one in self.arguments}
        for one in self.arguments:
            one.check(found[one.name])
        return found

    def object_of(self, arguments: Mapping[str, str]) -> str:
        return arguments[self.arguments[0].name]

    def permits(self, viewer: Viewer, arguments: Mapping[str, str]) -> bool:
        """Whether the viewer may request, confirm and cancel the action."""
        if self.permission is ActionPermission.TOPIC:
            return viewer.may_administer(self.object_of(arguments))
        return viewer.may_administer_everything

    def dry_command(self, arguments: Mapping[str, str]) -> tuple[str, ...]:
        """Returns the words of the command that changes nothing."""
        return self._words(
            arguments, {"reason": "dry run", "note": "dry run", "author": "", "count": ""}, ("--dry-run",)
        )

    def real_command(self, arguments: Mapping[str, str], reason: str, author: str, count: int) -> tuple[str, ...]:
        """Returns the words of the command that makes the change.

        Args:
            author: the name of the confirming user.
            count: the number in the dry run.
        """
        who = f"{author} (console)"
        return self._words(
            arguments, {"reason": reason, "note": f"{reason} ({who})", "author": who, "count": str(count)}, ()
        )

    def undo_command(self, arguments: Mapping[str, str]) -> str:
        """Returns the command that undoes the action, for a shell; "" if nothing undoes it."""
        return self.undo.format_map({name: shlex.quote(value) for name, value in arguments.items()})

    def _words(self, arguments: Mapping[str, str], more: Mapping[str, str], flags: tuple[str, ...]) -> tuple[str, ...]:
        # An object may begin with a dash; a value after `=`, or after `--`, is never read as a flag.
        values = {**arguments, "pattern": glob.escape(self.object_of(arguments)), **more}
        words = [word for word in self.command if not _is_empty(word, values)]
        end = words.index("--") if "--" in words else len(words)
        words[end:end] = [*flags, "--format=json"]
        return tuple(word.format_map(values) for word in words)


def _is_empty(word: str, values: Mapping[str, str]) -> bool:
    found = re.fullmatch(r"--[a-z-]+=\{([a-z]+)\}", word)
    return found is not None and not values[found[1]]


TOPIC: Final = ActionArgument("topic", "topic", is_fixed=True)

ACTION_KINDS: Final[Mapping[str, ActionKind]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            ActionKind(
                "quarantine-replay",
                "Load quarantined messages",
                "Loads the messages that can be loaded now, such as after a missing schema was registered, into the "
                "table, exactly once. The others stay in the quarantine.",
                "Load",
                "message",
                (
                    TOPIC,
                    ActionArgument(
                        "code", "reason", {code: words for code, words in CODES.items() if code not in WITHOUT_SCHEMA}
                    ),
                ),
                ("quarantine", "replay", "--reason={code}", "--because={note}", "--", "{topic}"),
                outcome.of_rewrite,
            ),
            ActionKind(
                "quarantine-discard",
                "Delete quarantined messages",
                "Deletes the messages from the quarantine for good. The audit continues to count them as quarantined.",
                "Delete",
                "message",
                (TOPIC, ActionArgument("code", "reason", CODES)),
                (
                    "quarantine",
                    "discard",
                    "--reason={code}",
                    "--because={note}",
                    "--at-most={count}",
                    "--",
                    "{topic}",
                ),
                outcome.of_rewrite,
                deletes=True,
            ),
            ActionKind(
                "quarantine-accept",
                "Accept quarantined messages",
                "Ends the alarm. The messages stay in the quarantine, and later ones are a new alarm.",
                "Accept",
                "message",
                (TOPIC,),
                ("accept", "--kind=quarantined", "--reason={reason}", "--author={author}", "--", "{topic}"),
                outcome.of_accepted_alarms,
                undo="headrace accept {topic} --kind quarantined --withdraw",
            ),
            ActionKind(
                "audit-accept",
                "Accept findings of the audit",
                "Marks windows that are missing, extra, mismatch or unknown as explained. If their counts change "
                "later, they are findings again.",
                "Accept",
                "window",
                (
                    TOPIC,
                    ActionArgument("since", "start", pattern=_TIME, is_optional=True, is_fixed=True),
                    ActionArgument("until", "end", pattern=_TIME, is_optional=True, is_fixed=True),
                ),
                (
                    "audit",
                    "accept",
                    "--since={since}",
                    "--until={until}",
                    "--reason={reason}",
                    "--author={author}",
                    "--",
                    "{topic}",
                ),
                outcome.of_accepted_windows,
                undo="headrace audit accept {topic} --withdraw",
            ),
            ActionKind(
                "alert-silence",
                "Silence an alert",
                "Suppresses notifications about this finding for a time. A silence repairs nothing.",
                "Silence",
                "alert",
                (
                    ActionArgument("subject", "subject", is_fixed=True),
                    ActionArgument("kind", "kind", {kind: kind for kind in FINDING_KINDS}, is_fixed=True),
                    ActionArgument("duration", "duration", DURATIONS),
                ),
                (
                    "alerts",
                    "silence",
                    "--kind={kind}",
                    "--subject={pattern}",
                    "--for={duration}",
                    "--reason={reason}",
                    "--author={author}",
                ),
                outcome.of_silence,
                permission=ActionPermission.EVERYTHING,
                undo="headrace alerts unsilence ID",
                may_be_empty=True,
            ),
        )
    }
)
"""All actions, by name."""
