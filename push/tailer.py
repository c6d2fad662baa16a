"""Follows files, in one thread: which source a file belongs to, and when it is read.

The thread never waits for the network: a source with chunks in memory is not read further, and its file is the buffer.
Every `poll_s` it compares the sizes of the open files with the positions; every `scan_s` it lists the directories. A
renamed or deleted file stays open until all of it is confirmed. The thread searches a file that is neither open nor
at a known path by its identity in its directory and in `olddir`, then among rotated copies.
"""

from __future__ import annotations

import logging
import os
import resource
import time

from headrace.push.config import FileRule, PushConfig
from headrace.push.contents import Content, GzipContent, matches, open_content
from headrace.push.copies import SourceFinder, may_be_rotated
from headrace.push.cutting import ContentReplaced, Cut, compile_start
from headrace.push.directories import ChangeWatch, FileScanner, ScannedFile, directory_of, neighbours, rule_of
from headrace.push.identity import FileIdentifier, FileKey, host_identity
from headrace.push.reading import FileReader
from headrace.push.rules import FileAction, SeenFile, decide_file
from headrace.push.source import Shared, TailedFile, TailSource, TailState, safe_text

logger = logging.getLogger(__name__)

OPEN_FILES_SPARE = 64
"""Descriptors that are not used for files."""
CHANGE_INTERVAL_S = 0.028
"""Least time between two polls because of notified changes, so that a busy writer does not cause a request per line. A
request costs the gateway about 2 ms of CPU time."""
QUIET_AFTER_S = 10.0
QUIET_POLLS = 5
"""Files without growth for `QUIET_AFTER_S` are polled every `QUIET_POLLS` times, or when inotify reports a change."""
SOUGHT_FOR_S = 600.0
"""Rotated copies of a file that disappeared are looked for during this time."""


class Tailer:
    """Reads the files of the rules into the sources of `shared`."""

    def __init__(self, config: PushConfig, shared: Shared, states: list[TailState]) -> None:
        self._config = config
        self._shared = shared
        self._reader = FileReader(config, shared)
        self._scanner = FileScanner(config.rules)
        self._identifier = FileIdentifier()
        self._host_id = config.host_id or host_identity()
        self._files: dict[tuple[int, int], TailedFile] = {}  # by device and inode; an open file keeps its inode
        self._finder = SourceFinder(shared, self._files)
        self._examined: dict[tuple[int, int], tuple[int, int, int]] = {}  # files to leave alone until they change
        self._gzip_seen: dict[tuple[int, int], tuple[int, int, int]] = {}  # as of the last scan
        self._compared: dict[tuple[str, int, int], tuple[int, int, int]] = {}
        self._scanned_at = -1e9
        self._changes = ChangeWatch()
        for state in states:
            state.stopped = None
            shared.other_states[state.id] = state
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and soft < hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        self._files_max = max(16, soft - OPEN_FILES_SPARE)
        self._is_limit_noted = False

    def close(self) -> None:
        for file in self._files.values():
            os.close(file.content.descriptor)
        self._files.clear()
        self._changes.close()

    def run(self) -> None:
        """Reads until `Shared.stopping` is set or the sender failed."""
        polled_at = -1e9  # negative: poll all files now
        polls = 0
        interval_s = self._config.poll_s
        waiting: list[TailedFile] = []  # files with unread bytes
        while not self._shared.stopping and self._shared.failed is None:
            now = time.monotonic()
            if now - self._scanned_at >= self._config.scan_s:
                self._scanned_at = now
                self.scan()
                interval_s = self._poll_interval_s(now)  # a file may be new
            if now - polled_at >= interval_s:
                polls += 1
                is_full = polled_at < 0 or not polls % QUIET_POLLS or interval_s > self._config.poll_s
                polled_at = now
                quiet_since = now - QUIET_AFTER_S
                waiting = self.poll([file for file in self._files.values() if is_full or file.grown_at > quiet_since])
                interval_s = self._poll_interval_s(now)
            else:
                waiting = self.poll([file for file in waiting if (file.device, file.inode) in self._files])
            due_at = min(polled_at + interval_s, self._scanned_at + self._config.scan_s)
            left_s = max(0.001, due_at - time.monotonic())
            if not waiting:
                if self._changes.wait(left_s):
                    time.sleep(max(0.0, min(left_s, polled_at + CHANGE_INTERVAL_S - time.monotonic())))
                    polled_at = -1e9
                continue
            with self._shared.changed:
                if all(self._reader.is_full(file.source) for file in waiting):
                    self._shared.changed.wait(left_s)

    def _poll_interval_s(self, now: float) -> float:
        """Returns the time until the next poll: without a file that grew recently, the thread wakes less often."""
        is_quiet = all(file.grown_at <= now - QUIET_AFTER_S for file in self._files.values())
        return self._config.poll_s * (QUIET_POLLS if is_quiet else 1)

    # Scanning

    def scan(self) -> None:
        """Looks for files, first of known sources, so that copies are compared with the newest positions."""
        with self._shared.lock:
            found = list(self._scanner.find(self._shared.states()))
            numbers = {one.number for one in found}
            for one in found:
                file = self._files.get(one.number)
                if file is not None and not file.is_copy:
                    self._note_path(file, one)
            unknown = [one for one in found if one.number not in self._files]
            unknown.sort(key=lambda one: one.status.st_mtime_ns)
            self._forget_examined(numbers)
            if len(self._files) != len(self._shared.sources) or unknown or self._shared.other_states:
                self._finder.index_states()
            for is_known in (True, False):
                if not is_known:
                    self._seek_missing(numbers)
                for one in unknown:
                    if one.number not in self._files and self._examined.get(one.number) != one.version:
                        self._guarded(one, is_known)
            self._changes.watch({directory_of(one.path) for one in found})
            self._gzip_seen = {one.number: one.version for one in found if one.path.endswith(".gz")}
            self._close_files(numbers)

    def _note_path(self, file: TailedFile, found: ScannedFile) -> None:
        state = file.source.state
        file.path = found.path
        state.mtime_s = int(found.status.st_mtime)
        if file.mtime_ns != found.status.st_mtime_ns:
            file.mtime_ns = found.status.st_mtime_ns
            source = file.source
            is_known = source.is_open and not source.needs_cursor and source.state.stopped is None
            if is_known and not matches(file.content, state.head, source.cursor.anchor, source.cursor.position):
                self._restart(file)  # written again, perhaps with the same size
                return
        if state.path != found.path:
            logger.info("file renamed from=%s to=%s", safe_text(state.path), safe_text(found.path))
            state.path = found.path
            self._shared.state_is_dirty = True

    def _forget_examined(self, numbers: set[tuple[int, int]]) -> None:
        for number in [number for number in self._examined if number not in numbers]:
            del self._examined[number]

    def _guarded(self, found: ScannedFile, known_only: bool) -> None:
        try:
            self._examine(found, known_only)
            self._scanner.note_success(found.path)
        except OSError as error:
            self._scanner.note_error(found.path, error)

    def _examine(self, found: ScannedFile, known_only: bool) -> None:
        """Opens a file, and decides what to do with it."""
        if not found.status.st_size and not self._finder.has_inode(found.status.st_ino):
            return  # an empty file of a known source was truncated
        if len(self._files) >= self._files_max:
            if not self._is_limit_noted:
                self._is_limit_noted = True
                logger.error(
                    "%d files are open, others wait file=%s; raise the limit of open files (LimitNOFILE in systemd)",
                    *(len(self._files), safe_text(found.path)),
                )
            return
        if found.path.endswith(".gz") and self._gzip_seen.get(found.number) != found.version:
            return  # it may still be written; examined if the next scan finds it unchanged
        content = open_content(found.path)
        if content is None:
            return
        keep = False
        try:
            status = os.fstat(content.descriptor)
            key = self._identifier.key(content.descriptor)
            if key is None or (status.st_dev, status.st_ino) != found.number:
                return
            keep = self._place(found, content, key, known_only)
        finally:
            if not keep:
                os.close(content.descriptor)

    def _place(self, found: ScannedFile, content: Content, key: FileKey, known_only: bool) -> bool:
        """Carries out the decision about an open file. Returns whether it stays open."""
        state = self._finder.state_of(key)
        size = content.size()
        copied = self._finder.copied_by_key(key) if state is None else None
        if copied is not None:
            pass
        elif known_only and state is None:
            return False
        else:
            if state is None and isinstance(content, GzipContent) and not content.is_complete():
                self._examined[found.number] = found.version
                return False
            copied = self._finder.copied(found, content, key) if state is None else None
        seen = SeenFile(
            size=size,
            is_compressed=content.is_compressed,
            known=state is not None,
            known_position=state.position if state is not None else 0,
            is_unchanged=state is None
            or content.is_compressed
            or matches(content, state.head, state.anchor, state.position),
            copied=copied.position if copied is not None else None,
            copied_is_read=copied is not None and self._finder.has_file(copied),
        )
        action = decide_file(seen)
        if action is FileAction.WAIT:
            if copied is not None and content.is_compressed:
                self._finder.add_copy(copied, key)
            return False
        if action is FileAction.ADOPT:
            assert copied is not None
            return self._adopt(found, content, key, copied)
        if action is FileAction.BEGIN:
            base = f"{self._host_id}/{key.text()}"
            state = self._new_state(found, key, base, 1)
        assert state is not None
        source = self._source(state, found.rule, is_new=action is FileAction.BEGIN)
        self._add(found, content, key, source)
        if action is FileAction.RESTART:
            self._restart(self._files[found.number])
        elif action is FileAction.BEGIN:
            source.state.note_head(content)
        return True

    def _adopt(self, found: ScannedFile, content: Content, key: FileKey, state: TailState) -> bool:
        """Continues a source in a copy of its file. Returns whether the copy stays open."""
        self._finder.add_copy(state, key)
        source = self._source(state, found.rule, is_new=False)
        source.can_reread = True
        logger.info(
            "source goes on in a copy file=%s source=%s position=%d",
            safe_text(found.path),
            state.id,
            source.cursor.position,
        )
        self._add(found, content, key, source, is_copy=True)
        return True

    def _new_state(self, found: ScannedFile, key: FileKey, base: str, incarnation: int) -> TailState:
        rule = found.rule
        name = os.path.basename(found.path)
        return TailState(
            base,
            incarnation,
            found.path,
            name,
            rule.topic,
            rule.log_type,
            rule.format,
            file=key,
            born_ns=key.birth_ns,
            mtime_s=int(found.status.st_mtime),
        )

    def _source(self, state: TailState, rule: FileRule, is_new: bool) -> TailSource:
        """Returns the source of a state. A new one waits for its session."""
        source = self._shared.sources.get(state.id)
        if source is None:
            self._shared.other_states.pop(state.id, None)
            state.gone_at_s = None
            source = TailSource(state, rule, self._cut(rule), is_new)
            self._shared.sources[state.id] = source
            self._finder.add(state)
            self._shared.state_is_dirty = True
            self._shared.changed.notify_all()
        return source

    def _cut(self, rule: FileRule) -> Cut:
        return Cut(
            self._config.chunk_bytes,
            self._config.line_bytes_max,
            rule.format == "json",
            compile_start(rule.start_pattern),
        )

    def _add(
        self, found: ScannedFile, content: Content, key: FileKey, source: TailSource, is_copy: bool = False
    ) -> None:
        device, inode = found.number
        source.size = content.size()
        self._files[found.number] = TailedFile(
            content, key, device, inode, found.path, source, time.monotonic(), is_copy, -1
        )
        if not is_copy:
            source.state.path = found.path
        logger.info(
            "file opened file=%s source=%s position=%d", safe_text(found.path), source.state.id, source.state.position
        )

    def _seek_missing(self, numbers: set[tuple[int, int]]) -> None:
        """Looks for the files of sources that are neither open nor found: by identity in their directory and in olddir,
        then among rotated copies there."""
        now = time.time()
        open_states = {id(file.source.state) for file in self._files.values()}
        for state in self._shared.states():
            if id(state) in open_states or (state.gone_at_s is not None and now - state.gone_at_s > SOUGHT_FOR_S):
                continue
            rule = rule_of(self._config.rules, state)
            if rule is None:
                continue  # no rule has this file any more; the state stays
            nearby = [found for found in neighbours(state.path, rule) if found.number not in self._files]
            own = [found for found in nearby if state.file is not None and found.status.st_ino == state.file.inode]
            if any(self._examined.get(found.number) == found.version for found in own):
                continue  # it was read to its end
            for found in own:
                self._guarded(found, True)
            if self._finder.is_open(state):
                continue
            if state.gone_at_s is None:
                state.gone_at_s = now
                self._shared.state_is_dirty = True
            for found in nearby:
                compared = (state.id, *found.number)
                if may_be_rotated(found.path, state) and self._compared.get(compared) != found.version:
                    self._compared[compared] = found.version
                    self._guarded_copy(found, state)
                    if self._finder.is_open(state):
                        break

    def _guarded_copy(self, found: ScannedFile, state: TailState) -> None:
        try:
            content = open_content(found.path)
        except OSError as error:
            self._scanner.note_error(found.path, error)
            return
        if content is None:
            return
        keep = False
        try:
            key = self._identifier.key(content.descriptor)
            if key is None or self._finder.state_of(key) is not None:
                return
            if (self._finder.copied_by_key(key) or self._finder.copied(found, content, key)) is state:
                keep = self._adopt(found, content, key, state)
        except OSError as error:
            self._scanner.note_error(found.path, error)
        finally:
            if not keep:
                os.close(content.descriptor)

    # Reading

    def poll(self, files: list[TailedFile]) -> list[TailedFile]:
        """Reads each file once, and returns the files with unread bytes."""
        waiting = []
        for file in files:
            try:
                if file.is_idle():
                    continue  # without the lock: most files do not grow
                with self._shared.changed:
                    if self._reader.read(file):
                        waiting.append(file)
            except ContentReplaced:
                with self._shared.changed:
                    self._restart(file)
            except OSError as error:
                self._scanner.note_error(file.path or file.source.state.path, error)
                with self._shared.changed:
                    self._let_go(file)
        return waiting

    def _restart(self, file: TailedFile) -> None:
        """Begins the next incarnation of a file with replaced content. The former one ends with the bytes read of
        it; a rotated copy continues it."""
        former = file.source
        state = former.state
        if file.is_copy:
            self._close_until_changed(file)
            return
        following = TailState(
            state.base, self._last_incarnation(state.base) + 1, state.path, state.name, state.topic, state.log_type,
            state.format, file=file.key, born_ns=file.key.birth_ns, mtime_s=state.mtime_s,
        )  # fmt: skip
        logger.info(
            "file was truncated or written again file=%s source=%s position=%d size=%d new_source=%s",
            *(safe_text(state.path), state.id, former.cursor.position, file.content.size(), following.id),
        )
        state.file = None
        file.source = self._source(following, former.rule, is_new=False)
        file.source.is_saved = False
        file.source.size = file.content.size()
        file.last_size = -1
        following.note_head(file.content)
        self._examined.clear()  # a copy may be the rest of this source
        if not self._finder.is_open(state):
            former.can_reread = False
            if not former.pending:
                self._retire(former)

    def _last_incarnation(self, base: str) -> int:
        return max(state.incarnation for state in self._shared.states() if state.base == base)

    def _retire(self, source: TailSource) -> None:
        """Moves a source without a file to `other_states`."""
        self._shared.sources.pop(source.state.id, None)
        self._shared.other_states[source.state.id] = source.state
        if source.state.gone_at_s is None:
            source.state.gone_at_s = time.time()
        self._shared.state_is_dirty = True

    def _let_go(self, file: TailedFile) -> None:
        self._files.pop((file.device, file.inode), None)
        os.close(file.content.descriptor)
        if not self._finder.is_open(file.source.state):
            file.source.can_reread = False

    def _close_until_changed(self, file: TailedFile) -> None:
        """Closes a file that has nothing to read, and leaves it alone until it changes."""
        status = os.fstat(file.content.descriptor)
        self._let_go(file)
        if status.st_nlink:
            self._examined[(file.device, file.inode)] = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def _close_files(self, numbers: set[tuple[int, int]]) -> None:
        """Closes files that are done: deleted ones after a while, copies at their end."""
        now = time.monotonic()
        for file in list(self._files.values()):
            source = file.source
            if file.path is not None and (file.device, file.inode) not in numbers:
                file.path = None
            if file.path is not None and not file.is_copy and not file.content.is_compressed:
                continue
            is_read = source.is_read and not source.needs_cursor
            if not is_read and source.state.stopped is None:
                continue
            status = os.fstat(file.content.descriptor)
            size = file.content.size() if file.content.is_compressed else status.st_size
            if source.cursor.position < size and source.state.stopped is None:
                continue
            is_deleted = not status.st_nlink and now - file.grown_at >= self._config.deleted_after_s
            if file.content.is_compressed or file.is_copy or is_deleted:
                logger.info(
                    "file closed file=%s source=%s position=%d",
                    safe_text(source.state.path),
                    source.state.id,
                    source.state.position,
                )
                self._close_until_changed(file)
        with_file = {id(file.source) for file in self._files.values()}
        for source in list(self._shared.sources.values()):
            if id(source) not in with_file and (not source.pending or source.state.stopped is not None):
                self._retire(source)

    def open_files(self) -> list[TailedFile]:
        return list(self._files.values())
