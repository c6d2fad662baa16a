"""The worker of the console's actions: a thread that runs one command at a time.

Commands are child processes, so that a failing one cannot harm the pages, and do the same as on a command line. They
have the user, the environment and the settings of the console. If the console is killed, the kernel kills the command
(Linux), and the action is interrupted.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from sqlalchemy.exc import SQLAlchemyError

from headrace.console.actions import child
from headrace.console.actions.kinds import ACTION_KINDS, ActionKind
from headrace.console.actions.outcome import ActionOutcome
from headrace.console.actions.storage import ActionState, ActionStore, ConsoleAction
from headrace.pipeline.up.part import python_command, python_environment

logger = logging.getLogger(__name__)

POLL_S: Final = 2.0
"""Interval at which the queue is read; a request in this process is noticed at once."""
ALIVE_S: Final = 2.0
COMMAND_S_MAX: Final = 3_600
OUTPUT_BYTES_MAX: Final = 8_000_000
ERROR_BYTES_MAX: Final = 65_536
ERROR_CHARS_MAX: Final = 500
RETRY_S: Final = 5.0
FAILED_EXIT: Final = 2
"""From this exit code on, a command has no result."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The end of a command: its JSON, or the reason why it has none."""

    document: Any = None
    error: str = ""


RunCommand = Callable[[Sequence[str], Callable[[], bool]], CommandResult]


class ActionWorker:
    """Runs actions in a thread.

    Args:
        run: runs the words of a command after `headrace`, as `command_runner` returns it. Calls the second argument
            regularly, and stops the command if that returns False.
        now_ms: the clock, in milliseconds since 1970.
        on_change: called after a command that may have changed something, before its action is done.
    """

    def __init__(
        self,
        store: ActionStore,
        run: RunCommand,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._run = run
        self._now_ms = now_ms
        self._on_change = on_change
        self._name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"

    def start(self) -> None:
        threading.Thread(target=self._loop, name="actions", daemon=True).start()

    def _loop(self) -> None:
        while True:
            try:
                if self.step():
                    continue
            except SQLAlchemyError as error:
                logger.error("actions_not_read error=%s", str(error).splitlines()[0])
                time.sleep(RETRY_S)
            self._store.changed.wait(POLL_S)
            self._store.changed.clear()

    def step(self) -> bool:
        """Runs the dry run or the command of one action. Returns whether there was one."""
        action = self._store.take(self._name, self._now_ms())
        if action is None:
            return False
        logger.info("action_started id=%d kind=%s state=%s", action.id, action.kind, action.state)
        kind = ACTION_KINDS.get(action.kind)
        if action.state is ActionState.CHECKING:
            self._check(action, kind)
        else:
            self._make(action, kind)
        return True

    def _check(self, action: ConsoleAction, kind: ActionKind | None) -> None:
        outcome, error = self._result(action, kind, None if kind is None else kind.dry_command(action.arguments))
        state = ActionState.CHECKED
        if error or outcome is None:
            state = ActionState.FAILED
        elif kind is not None and not outcome.count and not kind.may_be_empty:
            state, error = ActionState.CANCELLED, "there is nothing to do"
        self._until_stored(
            lambda: self._store.finish_dry_run(action.id, self._name, state, outcome, error, self._now_ms())
        )

    def _make(self, action: ConsoleAction, kind: ActionKind | None) -> None:
        words = None
        if kind is not None:
            count = action.dry_run.count if action.dry_run else 0
            words = kind.real_command(action.arguments, action.reason, action.confirmed_by, count)
        outcome, error = self._result(action, kind, words)
        self._on_change()
        state = ActionState.FAILED if error else ActionState.DONE
        self._until_stored(lambda: self._store.finish(action.id, self._name, state, outcome, error, self._now_ms()))
        logger.info("action_ended id=%d kind=%s state=%s by=%s", action.id, action.kind, state, action.confirmed_by)

    def _result(
        self, action: ConsoleAction, kind: ActionKind | None, words: Sequence[str] | None
    ) -> tuple[ActionOutcome | None, str]:
        """Runs a command. Returns its outcome, and the reason why nothing was changed, "" for none."""
        if kind is None or words is None:
            return None, "this release does not know the action"
        result = self._run(words, lambda: self._keeps(action.id))
        if result.error:
            return None, result.error
        try:
            outcome = kind.read(result.document)
        except (KeyError, TypeError, AttributeError) as error:
            return None, f"the output of the command has another form: {error!r}"
        if outcome.problems and not outcome.commit_number:
            return outcome, outcome.problems[0]
        return outcome, ""

    def _keeps(self, number: int) -> bool:
        try:
            return self._store.keep(number, self._name, self._now_ms())
        except SQLAlchemyError as error:  # such as a locked database; only another worker can take the action
            logger.warning("action_not_kept id=%d error=%s", number, str(error).splitlines()[0])
            return True

    def _until_stored(self, store: Callable[[], bool]) -> None:
        """Stores a result, again and again if the database fails: the change has been made."""
        while True:
            try:
                if not store():
                    logger.warning("action_result_ignored reason=the action is no longer this worker's")
                return
            except SQLAlchemyError as error:
                logger.error("action_result_not_stored error=%s", str(error).splitlines()[0])
                time.sleep(RETRY_S)


def command_runner(environment: Mapping[str, str], seconds_max: float = COMMAND_S_MAX) -> RunCommand:
    """Returns a function that runs `headrace …` with these environment variables, in a child process that the kernel
    ends with this one."""
    variables = python_environment(environment)

    def run(words: Sequence[str], is_wanted: Callable[[], bool]) -> CommandResult:
        command = [sys.executable, "-S", "-E", str(Path(child.__file__)), str(os.getpid())]
        command += python_command("headrace", *words)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=variables)
            except (OSError, ValueError) as error:
                return CommandResult(error=f"the command cannot be started: {error}")
            stopped = _wait(process, is_wanted, seconds_max)
            return CommandResult(error=stopped) if stopped else _read(process.returncode, out, errors)

    return run


def _wait(process: subprocess.Popen[bytes], is_wanted: Callable[[], bool], seconds_max: float) -> str:
    """Waits for the end of a command, and returns ""; stops it if it is not wanted or takes too long, and returns the
    reason."""
    deadline = time.monotonic() + seconds_max
    while True:
        try:
            process.wait(ALIVE_S)
            return ""
        except subprocess.TimeoutExpired:
            is_late = time.monotonic() > deadline
            if not is_late and is_wanted():
                continue
        process.kill()
        process.wait()
        if is_late:
            return f"the command did not end within {seconds_max:,.0f} s and was stopped"
        return "another worker took the action for interrupted, and the command was stopped"


def _read(exit_code: int, out: IO[bytes], errors: IO[bytes]) -> CommandResult:
    if exit_code < 0 or exit_code >= FAILED_EXIT:
        return CommandResult(error=_error_line(errors) or f"the command ended with code {exit_code}")
    size = os.fstat(out.fileno()).st_size
    if size > OUTPUT_BYTES_MAX:
        return CommandResult(error=f"the command's output has {size:,} bytes, more than {OUTPUT_BYTES_MAX:,}")
    out.seek(0)
    try:
        return CommandResult(json.loads(out.read()))
    except ValueError as error:
        return CommandResult(error=f"the output of the command is no JSON: {error}")


def _error_line(errors: IO[bytes]) -> str:
    """Returns the last line of standard error, which is the reason of a failed command."""
    size = os.fstat(errors.fileno()).st_size
    errors.seek(max(0, size - ERROR_BYTES_MAX))
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1].removeprefix("headrace: ")[:ERROR_CHARS_MAX] if lines else ""
