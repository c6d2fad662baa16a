"""Sends chunks to the gateway, in one thread. Writes the state file after confirmations."""

from __future__ import annotations

import base64
import json
import logging
import os
import random
import threading
import time
import zlib
from dataclasses import replace
from typing import Any, Optional
from urllib.parse import urljoin

from headrace.push.config import PushConfig, PushError
from headrace.push.cutting import TEXT, Bytes, PushChunk, PushReject, record_of
from headrace.push.gateway_client import FAILURES, GatewayAnswer, GatewayClient, base_of
from headrace.push.rules import Answer, Resume, decide_resume, position_after_open, retry_delay_s
from headrace.push.source import PushSession, Shared, StateFile, TailSource, safe_text, without_forgotten

logger = logging.getLogger(__name__)

REJECTS_FILE = "rejects.jsonl"
STOP_GRACE_S = 5.0
ATTEMPTS_MAX = 5
"""Requests to open a session, with redirections and with other numbers of earlier sessions."""


class Sender:
    """The thread that opens sessions and sends chunks. `run` returns when `Shared.stopping` is set and the chunks in
    memory are sent, or after a grace time."""

    def __init__(self, config: PushConfig, shared: Shared, state_file: StateFile) -> None:
        self._config = config
        self._shared = shared
        self._state_file = state_file
        self._client = GatewayClient(config)
        self._compressor = GzipCompressor()
        self._network_failures = 0
        self._network_retry_at = 0.0
        self._state_written_at = 0.0
        self._reported = ""
        self.thread = threading.Thread(target=self._run, name="sender", daemon=True)

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as error:
            with self._shared.changed:
                self._shared.failed = error
                self._shared.changed.notify_all()

    def run(self) -> None:
        stop_at: Optional[float] = None
        while True:
            with self._shared.changed:
                source = self._next(time.monotonic())
                if self._shared.stopping:
                    stop_at = stop_at or time.monotonic() + STOP_GRACE_S
                    if source is None or not source.pending or time.monotonic() > stop_at:
                        break
                elif source is None:
                    self._shared.changed.wait(self._wait_s())
            if source is not None:
                self._serve(source)
            self._write_state_when_due()
        self._write_state()
        self._end_sessions()

    def _next(self, now: float) -> Optional[TailSource]:
        """Returns the source to serve next. The ones served wait at the end of the order."""
        if now < self._network_retry_at:
            return None
        for source in self._shared.sources.values():
            if source.state.stopped is None and now >= source.retry_at and (source.pending or not source.is_open):
                if source.state.id in self._shared.sources:  # the next one is another source's turn
                    self._shared.sources[source.state.id] = self._shared.sources.pop(source.state.id)
                return source
        return None

    def _wait_s(self) -> float:
        now = time.monotonic()
        times = [source.retry_at - now for source in self._shared.sources.values() if source.retry_at > now]
        if self._network_retry_at > now:
            times = [self._network_retry_at - now]
        if self._shared.state_is_dirty:
            times.append(max(0.0, self._state_written_at + self._config.state_s - now))
        return max(0.001, min([1.0, *times]))

    def _serve(self, source: TailSource) -> None:
        """Opens a source's session, or sends its next chunk."""
        try:
            chunk = source.pending[0] if source.pending else None
            if chunk is not None and chunk.is_empty and source.is_open:
                self._confirm(source, chunk, source.state.last_seqno, ())
            elif source.session is None or not source.is_open:
                self._open(source)
            elif chunk is not None:
                self._send(source, source.session, chunk)
        except FAILURES as error:
            self._fail_network(source, error)

    def _open(self, source: TailSource) -> None:
        """Opens the session of a source. Without a state of it, looks for its latest incarnation at the gateway: the
        state file may be lost."""
        if source.is_new:
            self._change_incarnation(source, 1)  # also after a search that a failure ended
        answer, base = self._open_request(source)
        while source.is_new and answer.answer is Answer.STORED and answer.number("last_seqno") > 0:
            previous = source.state.incarnation
            logger.info(
                "found lines of an earlier run source=%s last_seqno=%d", source.state.id, answer.number("last_seqno")
            )
            self._change_incarnation(source, previous + 1)
            following, following_base = self._open_request(source)
            if following.answer is Answer.STORED and following.number("last_seqno") == 0:
                if answer.number("last_seqno") <= source.size:
                    self._change_incarnation(source, previous)
                    answer, base = self._open_request(source)
                else:
                    answer, base = following, following_base
                break
            answer, base = following, following_base
        if answer.answer is not Answer.STORED:
            source.session = None
            self._fail(source, answer)
            return
        self._succeed(source)
        body, last_seqno = answer.body, answer.number("last_seqno")
        url = str(body.get("url") or base).rstrip("/")
        with self._shared.changed:
            source.session = PushSession(str(body.get("session", "")), url, int(body.get("max_chunk_bytes", 1 << 62)))
            self._resume(source, last_seqno)
            source.is_new = False
            self._shared.changed.notify_all()
        logger.debug("session opened source=%s position=%d", source.state.id, source.cursor.position)

    def _change_incarnation(self, source: TailSource, incarnation: int) -> None:
        with self._shared.lock:
            self._shared.sources.pop(source.state.id, None)
            source.state.incarnation = incarnation
            source.state.session_number = 0
            self._shared.sources[source.state.id] = source

    def _open_request(self, source: TailSource) -> tuple[GatewayAnswer, str]:
        """Requests a session, from the gateway that has the source. Returns the response and the gateway's base URL.

        The request names the newest known session. So it opens none if it is delayed until a later request has opened
        one, for example in a balancer: its session would end the one that this client uses.
        """
        state = source.state
        wanted = {
            "topic": state.topic,
            "log_type": state.log_type,
            "source_id": state.id,
            "host": self._config.host,
            "file": safe_text(state.path),
            "format": state.format,
        }
        known = {name: value for name, value in wanted.items() if value is not None}
        base = source.session.url if source.session is not None else self._client.base_url
        for _ in range(ATTEMPTS_MAX):
            body = json.dumps({**known, "previous": state.session_number}).encode()
            answer = self._client.request("POST", base, "/v1/sessions", body, {"Content-Type": "application/json"})
            if answer.answer in (Answer.OUTDATED, Answer.STORED):
                state.session_number = answer.number("session_number")
            if answer.answer is Answer.MOVED and answer.location:
                base = base_of(urljoin(base, answer.location))
            elif answer.answer is not Answer.OUTDATED:
                break
        return answer, base

    def _resume(self, source: TailSource, last_seqno: int) -> None:
        """Continues a source at the position of the gateway."""
        state = source.state
        position = position_after_open(last_seqno, state.last_seqno, state.position)
        first = source.pending[0].begin if source.pending else None
        decided = decide_resume(position, first, source.size if source.can_reread else None)
        if decided is Resume.LOST:
            logger.error(
                "the gateway has lost lines that the file has no more source=%s file=%s from=%d to=%d",
                *(state.id, safe_text(state.path), position, first),
            )
        elif decided is Resume.SEEK and position != source.cursor.position:
            if position < state.position:
                logger.warning(
                    "the gateway has lost lines; they are sent again source=%s from=%d to=%d",
                    state.id,
                    position,
                    state.position,
                )
            source.pending.clear()
            source.needs_cursor = True
            source.cursor.position = position
        elif decided is Resume.RESTART:
            source.pending.clear()
            source.needs_cursor = True
            source.cursor.position = position  # the reader sees that the file is smaller
        state.last_seqno = last_seqno
        while source.pending and source.pending[0].end <= position:
            chunk = source.pending.popleft()
            state.position, state.anchor = chunk.end, chunk.anchor
        self._shared.state_is_dirty = True
        source.is_open = True

    def _send(self, source: TailSource, session: PushSession, chunk: PushChunk) -> None:
        if not source.is_saved and not self._write_state():
            self._wait(source, f"{self._state_file.path} is not writable", None, is_error=True)
            return
        source.is_saved = True
        crc = zlib.crc32(chunk.body)
        headers = {
            "Content-Type": chunk.content_type,
            "Content-Encoding": "gzip",
            "Headrace-Checksum": f"crc32={crc:08x}",
        }
        query = f"?begin={chunk.begin}" if chunk.content_type == TEXT else ""
        path = f"/v1/sessions/{session.id}/chunks{query}"
        body = self._compressor.compressed(chunk.body, crc)
        answer = self._client.request("POST", session.url, path, body, headers)
        if answer.answer is Answer.STORED:
            last_seqno = answer.number("last_seqno")
            rejected = answer.body.get("rejected") or ()
            sent = replace(chunk, body=bytes(chunk.body)) if rejected else chunk
            rejects = [
                PushReject(
                    int(one["seqno"]),
                    int(one["error_code"]),
                    str(one["message"]),
                    record_of(sent, int(one["seqno"])) or b"",
                )
                for one in rejected
            ]
            self._shared.sent_chunks += 1
            self._shared.sent_records += int(answer.body.get("written", 0))
            self._confirm(source, chunk, last_seqno, rejects)
            self._succeed(source)
        elif answer.answer is Answer.REOPEN:
            self._close(source, None)
        elif answer.answer is Answer.MOVED and answer.location:
            self._close(source, PushSession("", base_of(urljoin(session.url, answer.location)), 0))
        else:
            self._fail(source, answer)

    def _close(self, source: TailSource, session: Optional[PushSession]) -> None:
        with self._shared.lock:
            source.session = session
            source.is_open = False

    def _confirm(self, source: TailSource, chunk: PushChunk, last_seqno: int, rejects: Any) -> None:
        """Notes that a chunk is stored. The rejects file comes first: the state then does not lead past it."""
        self._write_rejects(source, [*chunk.rejects, *rejects])
        with self._shared.changed:
            if source.pending and source.pending[0] is chunk:
                source.pending.popleft()
                source.state.position = chunk.end
                source.state.anchor = chunk.anchor
                source.state.last_seqno = last_seqno
                self._shared.state_is_dirty = True
                self._shared.changed.notify_all()

    def _succeed(self, source: TailSource) -> None:
        self._network_failures = 0
        source.failures = 0
        if source.state.problem is not None:
            logger.info("recovered source=%s file=%s", source.state.id, safe_text(source.state.path))
            source.state.problem = None

    def _fail(self, source: TailSource, answer: GatewayAnswer) -> None:
        state = source.state
        with self._shared.changed:
            if answer.answer is Answer.FENCED:
                host = safe_text(str(answer.body.get("host") or "another host"))
                since = safe_text(str(answer.body.get("opened_at") or "an unknown time"))
                state.stopped = f"{host} has sent this source since {since}"
                self._shared.state_is_dirty = True
                logger.error(
                    "source stopped: a later session exists file=%s source=%s host=%s opened_at=%s; stop one of "
                    "the two clients, then restart this one",
                    *(safe_text(state.path), state.id, host, since),
                )
                source.pending.clear()
                return
            if answer.answer is Answer.SMALLER and source.can_reread and source.cut.chunk_bytes > 4096:
                source.cut = type(source.cut)(
                    source.cut.chunk_bytes // 2, source.cut.line_bytes_max, source.cut.is_json, source.cut.start
                )
                source.pending.clear()
                source.cursor.position = state.position
                source.needs_cursor = True
                logger.warning(
                    "chunk too large, chunks of %d bytes from now on source=%s", source.cut.chunk_bytes, state.id
                )
                return
        self._wait(source, answer.problem, answer.retry_after_s, is_error=answer.answer is not Answer.RETRY)

    def _wait(self, source: TailSource, problem: str, retry_after_s: Optional[float], is_error: bool) -> None:
        source.failures += 1
        delay = retry_delay_s(
            source.failures, self._config.retry_s, self._config.retry_max_s, retry_after_s, random.random()
        )
        source.retry_at = time.monotonic() + delay
        if source.state.problem != problem:
            log = logger.error if is_error else logger.warning
            log("not sent, retried file=%s source=%s: %s", safe_text(source.state.path), source.state.id, problem)
            source.state.problem = problem
            self._shared.state_is_dirty = True

    def _fail_network(self, source: TailSource, error: Exception) -> None:
        self._network_failures += 1
        delay = retry_delay_s(
            self._network_failures, self._config.retry_s, self._config.retry_max_s, None, random.random()
        )
        self._network_retry_at = time.monotonic() + delay
        problem = f"gateway {self._client.base_url}: {error}"
        if source.state.problem != problem:
            logger.warning("not sent, retried: %s", problem)
            source.state.problem = problem
            self._shared.state_is_dirty = True
        if source.session is not None and source.session.url != self._client.base_url:
            self._close(source, None)  # its gateway may be down for good: another one has the source then
        self._client.use_next_gateway()

    def _write_rejects(self, source: TailSource, rejects: list[PushReject]) -> None:
        if not rejects:
            return
        lines = []
        for reject in rejects:
            try:
                value = {"value": reject.value.decode("utf-8")}
            except UnicodeDecodeError:
                value = {"value_base64": base64.b64encode(reject.value).decode()}
            entry = {
                "source_id": source.state.id,
                "file": safe_text(source.state.path),
                "seqno": reject.seqno,
                "error_code": reject.error_code,
                "message": reject.message,
                **value,
            }
            lines.append(json.dumps(entry))
        self._append("\n".join(lines) + "\n")
        logger.warning(
            "records rejected file=%s count=%d first=%s", safe_text(source.state.path), len(rejects), rejects[0].message
        )

    def _append(self, text: str) -> None:
        """Appends to the rejects file. Waits while the disk is full: the next confirmation would lose the records."""
        path = self._state_file.path.parent / REJECTS_FILE
        while True:
            try:
                with path.open("a", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                return
            except OSError as error:
                if self._shared.stopping:
                    raise PushError(f"cannot write {path}; rejected records are not in it") from error
                self._report(f"cannot write {path}: {error.strerror}; free space or repair its permissions")
                time.sleep(1.0)

    def _write_state_when_due(self) -> None:
        if self._shared.state_is_dirty and time.monotonic() >= self._state_written_at + self._config.state_s:
            self._write_state()

    def _write_state(self) -> bool:
        """Writes the state file, and returns whether that succeeded. A full disk stops no source that the file has."""
        with self._shared.lock:
            self._shared.state_is_dirty = False
            states = without_forgotten(self._shared.states(), time.time(), self._config.forget_after_s)
            known = {state.id for state in states}
            for name in [name for name in self._shared.other_states if name not in known]:
                del self._shared.other_states[name]
            text = self._state_file.text(states)
        self._state_written_at = time.monotonic()
        try:
            self._state_file.write(text)
        except OSError as error:
            self._shared.state_is_dirty = True
            self._report(
                f"cannot write {self._state_file.path}: {error.strerror}; free space or repair its permissions"
            )
            return False
        self._reported = ""
        return True

    def _report(self, problem: str) -> None:
        """Logs a problem that persists once."""
        if self._reported != problem:
            self._reported = problem
            logger.error("%s", problem)

    def _end_sessions(self) -> None:
        try:
            for source in self._shared.sources.values():
                if source.session is not None and source.is_open and source.session.url == self._client.base_url:
                    self._client.request("DELETE", source.session.url, f"/v1/sessions/{source.session.id}", b"", {})
        except FAILURES:
            logger.debug("sessions not ended")  # their lease ends them
        self._client.close()


GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\4\xff"
LAST_BLOCK = b"\3\0"
"""An empty deflate block that ends the stream (RFC 1951, 3.2.3: BFINAL, fixed codes, end of block)."""


class GzipCompressor:
    """Compresses bodies with the fastest level, which leaves a fifth of a log in less than half of the time of the
    usual level. All bodies use one deflate state of 260 KB: a new one for each body takes 4 to 8 % longer. A full flush
    empties it after each body, so that no stream refers to an earlier one. An exception in between ends the client."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(1, zlib.DEFLATED, -15)

    def compressed(self, body: Bytes, crc: int) -> bytes:
        """Returns a gzip stream.

        Args:
            crc: CRC-32 of the body, which the request has too, so that it is computed once.
        """
        trailer = crc.to_bytes(4, "little") + (len(body) & 0xFFFFFFFF).to_bytes(4, "little")
        blocks = self._deflate.compress(body), self._deflate.flush(zlib.Z_FULL_FLUSH)
        return b"".join((GZIP_HEADER, *blocks, LAST_BLOCK, trailer))
