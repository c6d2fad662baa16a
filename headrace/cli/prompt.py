"""A prompt for statements, with the lines of earlier times a key away."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from headrace.settings import user_state_directory

HISTORY_LINES_MAX = 2_000
LEAVING = frozenset({"exit", "quit", "\\q"})


def statements_typed(name: str) -> Iterator[str]:
    """Each text up to a line that ends with a semicolon. Ctrl-C drops what was typed, Ctrl-D or `quit` ends.

    Args:
        name: what is prompted for.
    """
    with _history(_history_path(name)):
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
            if not lines and line.strip().rstrip(";").lower() in LEAVING:
                return
            if not lines and not line.strip():
                continue
            lines.append(line)
            if line.rstrip().endswith(";"):
                yield "\n".join(lines)
                lines = []


def _history_path(name: str) -> Path | None:
    state = user_state_directory()
    return None if state is None else state / "headrace" / f"{name.split()[-1]}-history"


@contextlib.contextmanager
def _history(path: Path | None) -> Iterator[None]:
    """Readline's editing, with a history in a file that its owner alone may read; without either where they lack."""
    if path is None:
        yield
        return
    try:
        import readline
    except ImportError:
        yield
        return
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES_MAX)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.write_history_file(path)
