"""Sources, their state, and the file that stores it.

A source is the content of one file from its creation to its replacement: a file that is truncated and written again
begins the next incarnation of the source, `…#2`. The state is written after the gateway confirmed records, and before
the first records of an incarnation are sent. The second rule makes a restart safe: a content that the state does not
know was never sent under the source's id.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Optional

from headrace.push.config import FileRule, PushError
from headrace.push.contents import Content, fingerprint, head_of, line_heads_of
from headrace.push.cutting import Cut, PushChunk, TailCursor
from headrace.push.identity import FileKey
from headrace.push.rules import Fingerprint

STATE_FILE = "state.json"
FORGOTTEN_MAX = 2_000
"""Positions of disappeared files that the state holds at most."""
FORMAT_VERSION = 1


@dataclass
class TailState:
    """The entry of a source in the state file.

    Attributes:
        base: the source id without the incarnation.
        path: the last known path of the file.
        name: the file's name when it was first seen. Names of its rotated copies derive from it.
        position: all records before it are confirmed.
        last_seqno: the last seqno that the gateway reported.
        session_number: number of the newest session that this client knows; 0 for none.
        head: fingerprint of the file's first bytes.
        line_heads: see `line_heads_of`. They identify a copy that is shorter than the head.
        anchor: fingerprint of the bytes before `position`.
        file: the file with the content, None after its truncation.
        born_ns: birth time of the file.
        copies: rotated copies that were recognized.
        mtime_s: time of the last change of the file.
        stopped: why the gateway ended the source for this client; None while it runs.
        problem: the last error, None after a success.
        gone_at_s: since when no file has the content, by the wall clock; None while there is one.
    """

    base: str
    incarnation: int
    path: str
    name: str
    topic: Optional[str] = None
    log_type: Optional[str] = None
    format: str = "lines"
    position: int = 0
    last_seqno: int = 0
    session_number: int = 0
    head: Fingerprint = field(default_factory=Fingerprint)
    anchor: Fingerprint = field(default_factory=Fingerprint)
    file: Optional[FileKey] = None
    born_ns: Optional[int] = None
    copies: list[FileKey] = field(default_factory=list)
    line_heads: list[Fingerprint] = field(default_factory=list)
    mtime_s: int = 0
    stopped: Optional[str] = None
    problem: Optional[str] = None
    gone_at_s: Optional[float] = None

    @property
    def id(self) -> str:
        return f"{self.base}#{self.incarnation}"

    def note_head(self, content: Content) -> None:
        self.head, self.line_heads = head_of(content), line_heads_of(content)

    def begins_like(self, content: Content, size: int) -> bool:
        """Whether a shorter file begins like this source."""
        length = min(self.head.length, size)
        return fingerprint(content.read(0, length)) in (self.head, *self.line_heads)


@dataclass
class PushSession:
    """An open session: its id and the base URL of the gateway that has it."""

    id: str
    url: str
    chunk_bytes_max: int


class TailSource:
    """A source at run time. The reader and the sender share it under `Shared.lock`.

    Attributes:
        cursor: of the reader; ahead of `state.position` by the chunks in memory.
        pending: chunks in memory, in order.
        is_open: the gateway's position is known, so that the reader may read.
        is_new: the state did not know the source; an earlier state may have, so incarnations are searched.
        is_saved: the state file has this incarnation with its head, which identifies a copy.
        can_reread: the content of the incarnation is still readable.
        size: of the content, as of the last poll.
    """

    def __init__(self, state: TailState, rule: FileRule, cut: Cut, is_new: bool) -> None:
        self.state = state
        self.rule = rule
        self.cut = cut
        self.cursor = TailCursor(state.position, state.anchor)
        self.pending: deque[PushChunk] = deque()
        self.session: Optional[PushSession] = None
        self.is_open = False
        self.is_new = is_new
        self.is_saved = not is_new and state.head.length > 0
        self.can_reread = True
        self.needs_cursor = True
        self.size = 0
        self.failures = 0
        self.retry_at = 0.0
        self.in_flight = False

    @property
    def pending_bytes(self) -> int:
        return sum(len(chunk.body) for chunk in self.pending)

    @property
    def is_read(self) -> bool:
        """Whether all that was read is confirmed."""
        return not self.pending and self.cursor.position <= self.state.position


@dataclass
class TailedFile:
    """An open file and the source of its content.

    Attributes:
        grown_at: monotonic time of the last growth.
        path: None if the file has no known path any more.
        is_copy: a rotated copy that continues a source without its own file.
    """

    content: Content
    key: FileKey
    device: int
    inode: int
    path: Optional[str]
    source: TailSource
    grown_at: float
    is_copy: bool = False
    last_size: int = 0
    mtime_ns: int = 0

    def is_idle(self) -> bool:
        """Whether the file has not grown since all of it was read."""
        source = self.source
        size = self.last_size
        at_end = source.cursor.position == size and source.is_open and not source.needs_cursor
        return at_end and self.content.size() == size


class Shared:
    """The sources that both threads use.

    Attributes:
        wake: set when the sender has something to do.
        skipped_nul_bytes: since the start.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.sources: dict[str, TailSource] = {}
        self.other_states: dict[str, TailState] = {}  # of sources without a file at the moment
        self.state_is_dirty = False
        self.stopping = False
        self.failed: Optional[BaseException] = None
        self.skipped_nul_bytes = 0
        self.sent_chunks = 0
        self.sent_records = 0

    def states(self) -> list[TailState]:
        return [*(source.state for source in self.sources.values()), *self.other_states.values()]


class StateFile:
    """The file of the states. Replaced as a whole, so that a crash leaves the old or the new one."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / STATE_FILE

    def read(self) -> list[TailState]:
        """Returns the states, none if there is no file.

        Raises:
            PushError: the file is damaged.
        """
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if found["version"] != FORMAT_VERSION:
                raise PushError(
                    f"{self.path}: version {found['version']} is not supported; use the release that wrote it"
                )
            return [_state_from(entry) for entry in found["sources"]]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise PushError(f"cannot read {self.path}: {error.strerror}; check its permissions") from error
        except (ValueError, KeyError, TypeError) as error:
            raise PushError(
                f"{self.path}: damaged: {error!r}; delete it: the gateway knows the position of each file, but rotated "
                "files with another name may be sent again"
            ) from error

    def text(self, states: Iterable[TailState]) -> str:
        return json.dumps({"version": FORMAT_VERSION, "sources": [_entry(state) for state in states]})

    def write(self, text: str) -> None:
        """Replaces the file, fsynced."""
        temporary = self.path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            data = text.encode("utf-8", "surrogateescape")
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _entry(state: TailState) -> dict[str, Any]:
    return {name: value for name, value in asdict(state).items() if value not in (None, [])}


def _state_from(entry: Mapping[str, Any]) -> TailState:
    values = dict(entry)
    for name in ("head", "anchor"):
        values[name] = Fingerprint(**values[name])
    if "file" in values:
        values["file"] = FileKey(**values["file"])
    values["line_heads"] = [Fingerprint(**head) for head in values.get("line_heads", [])]
    values["copies"] = [FileKey(**key) for key in values.get("copies", [])]
    return TailState(**values)


def without_forgotten(states: Iterable[TailState], now_s: float, forget_after_s: float) -> list[TailState]:
    """Returns the states without files that disappeared long ago, and without the oldest of too many."""
    kept = [state for state in states if state.gone_at_s is None or now_s - state.gone_at_s < forget_after_s]
    gone = sorted((state.gone_at_s for state in kept if state.gone_at_s is not None), reverse=True)
    if len(gone) <= FORGOTTEN_MAX:
        return kept
    return [state for state in kept if state.gone_at_s is None or state.gone_at_s > gone[FORGOTTEN_MAX]]


def safe_text(text: str) -> str:
    """Returns a path as text that can be sent and logged: bytes that are not UTF-8 and control characters escaped."""
    return re.sub(
        r"[\x00-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", text.encode("utf-8", "backslashreplace").decode()
    )
