"""The prompt of `headrace sql`: line editing, history, completion of names, and short commands in the style of psql."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from headrace.settings import user_state_directory

HISTORY_LINES_MAX: Final = 2_000
EXIT_COMMANDS: Final = frozenset({"exit", "quit", "\\q"})
HELP_COMMANDS: Final = frozenset({"help", "\\h", "\\?"})

GREETING: Final = (
    "End each query with a semicolon. `help` lists commands, `\\dt` tables; `quit` or Ctrl-D ends the prompt."
)
HELP: Final = """\
SELECT …;     runs a query; it may have several lines and ends with a semicolon
\\dt           lists the tables
\\d TABLE      lists the columns of a table
help          prints this text
quit          ends the prompt, as does Ctrl-D; Ctrl-C discards the typed lines

Tab completes SQL words, tables, and the columns of tables that the line names. Only queries are allowed."""

SQL_WORDS: Final = tuple(
    """
    SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT JOIN LEFT ON AS AND OR NOT IN IS NULL LIKE BETWEEN DISTINCT CASE WHEN
    THEN ELSE END COUNT SUM AVG MIN MAX CAST UNION ALL WITH VALUES SHOW TABLES PARTITIONS DESCRIBE EXPLAIN
    """.split()  # noqa: SIM905 - the list literal would have a line for each word
)

NAMES_TTL_S: Final = 60.0
"""How long completed names are cached; a load may add tables and columns."""

NAME: Final = re.compile(r"[\w.`]+")

RunQuietly = Callable[[str], Sequence[Sequence[str | None]]]
"""Runs a statement without output; returns its rows, none if it fails or would first start Spark."""


def short_command(line: str) -> str | None:
    """Returns the statement for a short command such as `\\dt`, or None for another line.

    Raises:
        ValueError: the line begins with a backslash, but is no command.
    """
    words = line.strip().rstrip(";").split()
    if not words or not words[0].startswith("\\"):
        return None
    if words in (["\\dt"], ["\\d"]):
        return "SHOW TABLES"
    if words[0] == "\\d" and len(words) == 2 and NAME.fullmatch(words[1]):
        return f"DESCRIBE {words[1]}"
    raise ValueError(f"{line.strip()[:60]!r} is not a command; `help` lists them")


class Completion:
    """Completes words at the prompt.

    Args:
        run: runs the statements that list tables and columns.
        clock: monotonic clock in seconds.
    """

    def __init__(self, run: RunQuietly, clock: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._clock = clock
        self._cached: dict[str, tuple[float, tuple[str, ...]]] = {}

    def candidates(self, line: str, word: str) -> list[str]:
        """Returns the completions of a word: columns of tables in the line, tables and SQL words, in this order.

        Args:
            line: the typed line.
        """
        tables = self._names("SHOW TABLES", 1)
        named = set(NAME.findall(line.lower()))
        columns = [name for table in tables if table in named for name in self._names(f"DESCRIBE {table}", 0)]
        found = [name for name in (*columns, *tables) if name.lower().startswith(word.lower())]
        found += [each if word.isupper() or not word else each.lower() for each in SQL_WORDS if _begins(each, word)]
        return list(dict.fromkeys(found))

    def _names(self, statement: str, column: int) -> tuple[str, ...]:
        """Returns the names in a column of a statement's result, up to the first row that is no name: DESCRIBE lists
        the partition columns again after a heading."""
        read_at, names = self._cached.get(statement, (float("-inf"), ()))
        if self._clock() - read_at > NAMES_TTL_S:
            found: list[str] = []
            for row in self._run(statement):
                name = row[column] if column < len(row) else None
                if not name or name.startswith("#"):
                    break
                found.append(name)
            names = tuple(found)
            self._cached[statement] = (self._clock(), names)
        return names


def _begins(keyword: str, word: str) -> bool:
    return keyword.startswith(word.upper())


def typed_statements(name: str, run: RunQuietly) -> Iterator[str]:
    """Yields statements typed at a prompt, each ended by a line with a final semicolon, and those of short commands.
    Ctrl-C discards the typed lines; Ctrl-D, `exit` and `quit` end the prompt.

    Args:
        name: the text of the prompt.
        run: runs the statements that complete names.
    """
    print(GREETING, file=sys.stderr)
    with _line_editing(_history_path(name), Completion(run)):
        lines: list[str] = []
        while True:
            try:
                line = input(f"{name}> " if not lines else f"{'…':>{len(name)}}> ")
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                lines = []
                continue
            command = line.strip().rstrip(";").rstrip().lower() if not lines else None
            if command in EXIT_COMMANDS:
                return
            if command in HELP_COMMANDS:
                print(HELP)
                continue
            if command == "":
                continue
            try:
                statement = short_command(line) if not lines else None
            except ValueError as error:
                print(f"headrace: {error}", file=sys.stderr)
                continue
            if statement is not None:
                yield statement
                continue
            lines.append(line)
            if line.rstrip().endswith(";"):
                yield "\n".join(lines)
                lines = []


def _history_path(name: str) -> Path | None:
    state = user_state_directory()
    return None if state is None else state / "headrace" / f"{name.split()[-1]}-history"


@contextlib.contextmanager
def _line_editing(path: Path | None, completion: Completion) -> Iterator[None]:
    """Enables line editing and completion at the prompt, with a history in a file that only its owner can read. Without
    the readline library, the prompt works without them.

    Args:
        path: the history file; None disables the history.
    """
    try:
        import readline
    except ImportError:
        yield
        return
    found: list[str] = []

    def complete(word: str, number: int) -> str | None:
        if number == 0:
            found[:] = completion.candidates(readline.get_line_buffer(), word)
        return found[number] if number < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,()=<>+-*/;'\"")
    # macOS has readline's interface on libedit, which has another syntax.
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")
    if path is not None:
        with contextlib.suppress(OSError):
            readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES_MAX)
    try:
        yield
    finally:
        readline.set_completer(None)
        if path is not None:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(mode=0o600)
                readline.write_history_file(path)
