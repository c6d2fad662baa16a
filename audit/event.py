"""Audit events: runs of neighbouring windows of one topic with one kind of difference; and incidents: events of several
topics that begin together.

An operator handles an event, not each of its windows. Its id stays when the run grows, shrinks or merges with
another one, so that alerts and links refer to the same event. All functions are pure.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, NamedTuple

from headrace.audit.verdict import EXPIRABLE, SEVERITY, AuditVerdict, Hop
from headrace.audit.window import SPECIAL_WINDOWS, WINDOW_MS, count_text, window_text

GAP_MS: Final = 2 * WINDOW_MS
"""Two windows whose starts are at most this far apart belong to one event: at most one other window is between them."""

RUNS_MAX: Final = 50
"""Events of one topic and kind at the same time. If there are more runs, as in a topic with random times, they are one
event."""

REOPEN_MS: Final = 3_600_000
"""A closed event opens again, instead of a new one, if it closed at most this long ago."""

PRODUCERS_MAX: Final = 3
"""More producers than this are no useful evidence, so an event names none of them."""

TOPICS_SHOWN: Final = 3
"""Topics that the sentence of an incident names."""

EVENT_VERDICTS: Final = EXPIRABLE
"""Verdicts of windows that form events: missing, extra, mismatch and unknown."""

Producer = tuple[str, str]
"""Application and host of a producer."""


class BadWindow(NamedTuple):
    """A window with a finding, or unknown. `sentence` explains the verdict."""

    window_start_ms: int
    verdict: AuditVerdict
    hop: Hop
    missing: int
    extra: int
    sentence: str


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """A run of windows of one topic with one verdict and hop.

    Attributes:
        id: 12 hexadecimal digits; stays the same while the event grows.
        start_ms, end_ms: start of the first window and end of the last one. For a special window, which has no time,
            its start (`window.SPECIAL_WINDOWS`) and that plus ten minutes.
        windows: number of windows with the verdict.
        missing, extra: messages over all windows of the event.
        producers: (application, host) of the producers that alone could be the cause; empty if others could, too.
        sentence: the evidence.
        opened_at_ms, changed_at_ms: when the event was first and last written.
        closed_at_ms: when no window of the event had the verdict any more; None while one has.
        resolution: the verdict of its windows when it closed, such as `complete` or `accepted`; "" while open.
        clean_windows: later windows of the topic with counts, and without a finding. Filled when events are read.
    """

    id: str
    topic: str
    verdict: AuditVerdict
    hop: Hop
    start_ms: int
    end_ms: int
    windows: int
    missing: int
    extra: int
    producers: tuple[Producer, ...]
    sentence: str
    opened_at_ms: int
    changed_at_ms: int
    closed_at_ms: int | None = None
    resolution: str = ""
    clean_windows: int = 0

    @property
    def is_open(self) -> bool:
        return self.closed_at_ms is None

    @property
    def command(self) -> str:
        """The command that shows the evidence, for a shell: names of topics are from messages of any producer."""
        if self.hop is Hop.LOG_TO_TABLES:
            return f"headrace verify {shlex.quote(self.topic)}"
        return f"headrace audit report --topic {shlex.quote(self.topic)}"


@dataclass(frozen=True, slots=True)
class Incident:
    """Events of several topics with one verdict and hop that begin together, such as those of a broker that lost
    messages. `id` is the id of the event that opened first. Events are ordered by topic."""

    id: str
    events: tuple[AuditEvent, ...]

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(event.topic for event in self.events))

    @property
    def verdict(self) -> AuditVerdict:
        return self.events[0].verdict

    @property
    def hop(self) -> Hop:
        return self.events[0].hop

    @property
    def start_ms(self) -> int:
        return min(event.start_ms for event in self.events)

    @property
    def end_ms(self) -> int:
        return max(event.end_ms for event in self.events)

    @property
    def missing(self) -> int:
        return sum(event.missing for event in self.events)

    @property
    def extra(self) -> int:
        return sum(event.extra for event in self.events)

    @property
    def opened_at_ms(self) -> int:
        return min(event.opened_at_ms for event in self.events)

    @property
    def changed_at_ms(self) -> int:
        return max(event.changed_at_ms for event in self.events)

    @property
    def closed_at_ms(self) -> int | None:
        """When the last event closed; None while one is open."""
        times = [event.closed_at_ms for event in self.events if event.closed_at_ms is not None]
        return max(times) if len(times) == len(self.events) else None

    @property
    def clean_windows(self) -> int:
        """The least number of clean windows after one of the events."""
        return min(event.clean_windows for event in self.events)

    @property
    def producers(self) -> tuple[Producer, ...]:
        """The producers that alone could be the cause in every topic."""
        common = set(self.events[0].producers).intersection(*(event.producers for event in self.events))
        return tuple(sorted(common))

    @property
    def sentence(self) -> str:
        if len(self.events) == 1:
            return self.events[0].sentence
        messages = [f"{count_text(self.missing, 'message')} missing"] if self.missing else []
        messages += [f"{count_text(self.extra, 'message')} extra"] if self.extra else []
        producers = f"; all sent by {producers_text(self.producers)}" if self.producers else ""
        topics = ", ".join(self.topics[:TOPICS_SHOWN])
        more = len(self.topics) - TOPICS_SHOWN
        return (
            f"{topics}{f' and {more:,} more topics' if more > 0 else ''} from {window_text(self.start_ms)} on: "
            + (", ".join(messages) or self.verdict.value)
            + producers
        )

    @property
    def command(self) -> str:
        return self.events[0].command


def event_id(topic: str, verdict: AuditVerdict, hop: Hop, start_ms: int) -> str:
    """Returns the id of an event. Its first window, when it opened, starts at `start_ms`."""
    text = "\0".join((topic, verdict.value, hop.value, str(start_ms)))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def events_of(
    topic: str,
    bad: Iterable[BadWindow],
    existing: Sequence[AuditEvent],
    *,
    now_ms: int,
    resolution: Mapping[str, str] | None = None,
) -> tuple[AuditEvent, ...]:
    """Returns the events of a topic after its windows with findings changed: the open ones, and the existing ones that
    close or are closed. Events without a change are returned as they are.

    A run of windows keeps the id of the event whose windows it shares or continues; of several events, that of the one
    that opened first, and the others close as `merged`. If a run splits, the earliest part keeps the id.

    Args:
        topic: the topic.
        bad: all its windows with a verdict in `EVENT_VERDICTS`.
        existing: its open events, and those that closed within `REOPEN_MS` or have the id of a new one.
        now_ms: the current time.
        resolution: by id of an event, the verdict that its windows have now, if it closes.
    """
    runs = sorted(_runs(bad), key=lambda run: (run[0].window_start_ms, run[0].verdict, run[0].hop))
    free = {event.id: event for event in existing if event.is_open or (event.closed_at_ms or 0) + REOPEN_MS > now_ms}
    closed = {event.id: event for event in existing if event.id not in free}
    found: list[AuditEvent] = []
    for run in runs:
        continued = sorted(
            (event for event in free.values() if _continues(event, run)), key=lambda one: (one.opened_at_ms, one.id)
        )
        new_id = event_id(topic, run[0].verdict, run[0].hop, run[0].window_start_ms)
        base = continued[0] if continued else closed.pop(new_id, None)
        for event in continued:
            del free[event.id]
        found += [_closed(event, now_ms, "merged") for event in continued[1:]]
        found.append(_event(topic, run, base, new_id, now_ms))
    resolution = resolution or {}
    found += [_closed(event, now_ms, resolution.get(event.id, "complete")) for event in free.values()]
    return (*found, *closed.values())


def _runs(bad: Iterable[BadWindow]) -> list[list[BadWindow]]:
    found: list[list[BadWindow]] = []
    ordered = sorted(bad, key=lambda one: (one.verdict, one.hop, one.window_start_ms))
    for _, group in groupby(ordered, key=lambda one: (one.verdict, one.hop)):
        runs: list[list[BadWindow]] = []
        for window in group:
            start_ms = window.window_start_ms
            previous = runs[-1][-1].window_start_ms if runs else None
            is_next = previous is not None and start_ms - previous <= GAP_MS and previous not in SPECIAL_WINDOWS
            if is_next:
                runs[-1].append(window)
            else:
                runs.append([window])
        special = [run for run in runs if run[0].window_start_ms in SPECIAL_WINDOWS]
        timed = [run for run in runs if run[0].window_start_ms not in SPECIAL_WINDOWS]
        if len(timed) > RUNS_MAX:
            timed = [[window for run in timed for window in run]]
        found += [*special, *timed]
    return found


def _continues(event: AuditEvent, run: Sequence[BadWindow]) -> bool:
    first, last = run[0], run[-1]
    if (event.verdict, event.hop) != (first.verdict, first.hop):
        return False
    if event.start_ms in SPECIAL_WINDOWS or first.window_start_ms in SPECIAL_WINDOWS:
        return event.start_ms == first.window_start_ms
    return first.window_start_ms < event.end_ms + WINDOW_MS and event.start_ms <= last.window_start_ms + GAP_MS


def _event(topic: str, run: Sequence[BadWindow], base: AuditEvent | None, new_id: str, now_ms: int) -> AuditEvent:
    first, last = run[0], run[-1]
    missing, extra = sum(one.missing for one in run), sum(one.extra for one in run)
    event = AuditEvent(
        id=new_id if base is None else base.id,
        topic=topic,
        verdict=first.verdict,
        hop=first.hop,
        start_ms=first.window_start_ms,
        end_ms=last.window_start_ms + WINDOW_MS,
        windows=len(run),
        missing=missing,
        extra=extra,
        producers=() if base is None else base.producers,
        sentence=_sentence(run),
        opened_at_ms=now_ms if base is None else base.opened_at_ms,
        changed_at_ms=now_ms,
    )
    if base is not None and replace(event, changed_at_ms=base.changed_at_ms, sentence=base.sentence) == base:
        # The sentence has the producers, which are added later, so it is compared by its beginning.
        return base if base.sentence.startswith(event.sentence) else event
    return event


def _sentence(run: Sequence[BadWindow]) -> str:
    """Returns the evidence of an event: its worst window with the difference, and the sums of several windows."""
    worst = max(run, key=lambda one: (one.missing + one.extra, -one.window_start_ms))
    if len(run) == 1:
        return f"{window_text(worst.window_start_ms)}: {worst.sentence}"
    missing, extra = sum(one.missing for one in run), sum(one.extra for one in run)
    sums = [f"{count_text(missing, 'message')} missing"] if missing else []
    sums += [f"{count_text(extra, 'message')} extra"] if extra else []
    total = " and ".join(sums) or str(run[0].verdict)
    return f"{total} in {count_text(len(run), 'window')}; {window_text(worst.window_start_ms)}: {worst.sentence}"


def _closed(event: AuditEvent, now_ms: int, resolution: str) -> AuditEvent:
    if not event.is_open:
        return event
    return replace(event, closed_at_ms=now_ms, changed_at_ms=now_ms, resolution=resolution)


def with_producers(event: AuditEvent, producers: Sequence[Producer]) -> AuditEvent:
    """Returns the event with the producers that alone could be the cause, and with them in its sentence."""
    if not producers:
        return event
    text = f"; sent by {producers_text(producers)}"
    return replace(event, producers=tuple(producers), sentence=event.sentence + text)


def producers_text(producers: Sequence[Producer]) -> str:
    """Returns producers as text: `shop on web-1, billing on web-2`."""
    return ", ".join(f"{application or 'unnamed'} on {host or 'an unknown host'}" for application, host in producers)


def suspects(
    counted: Mapping[int, Collection[Producer]], bad: Collection[int], good: Collection[int]
) -> tuple[Producer, ...]:
    """Returns the producers that alone could be the cause of an event: those that counted messages in each of its
    windows, without those that also counted in windows nearby that are complete. If all of them did, the producers that
    counted in each window of the event. Empty if these are more than `PRODUCERS_MAX`.

    Args:
        counted: the producers by window.
        bad: starts of the windows of the event.
        good: starts of complete windows nearby.
    """
    in_each: set[Producer] | None = None
    for start_ms in bad:
        producers = set(counted.get(start_ms, ()))
        in_each = producers if in_each is None else in_each & producers
    innocent = {producer for start_ms in good for producer in counted.get(start_ms, ())}
    in_each = in_each or set()
    found = in_each - innocent or in_each
    return tuple(sorted(found)) if len(found) <= PRODUCERS_MAX else ()


def incidents(events: Iterable[AuditEvent]) -> tuple[Incident, ...]:
    """Groups events of several topics with one verdict and hop whose starts are at most one window apart. Returns the
    most severe incidents first, then the newest.

    `events` must have the closed events that began together with open ones; otherwise an incident gets another id when
    the first of its events closes. `AuditStore.incidents` reads them.
    """
    ordered = sorted(events, key=lambda one: (one.verdict, one.hop, one.start_ms, one.topic))
    groups: list[list[AuditEvent]] = []
    for event in ordered:
        first = groups[-1][0] if groups else None
        is_same = first is not None and (first.verdict, first.hop) == (event.verdict, event.hop)
        if first is not None and is_same and _begin_together(first, event):
            groups[-1].append(event)
        else:
            groups.append([event])
    found = []
    for group in groups:
        first = min(group, key=lambda one: (one.opened_at_ms, one.id))
        found.append(Incident(first.id, tuple(sorted(group, key=lambda one: (one.topic, one.start_ms)))))
    return tuple(sorted(found, key=lambda one: (-SEVERITY.index(one.verdict), -one.start_ms, one.id)))


def _begin_together(one: AuditEvent, other: AuditEvent) -> bool:
    if one.start_ms in SPECIAL_WINDOWS or other.start_ms in SPECIAL_WINDOWS:
        return one.start_ms == other.start_ms
    return other.start_ms - one.start_ms <= WINDOW_MS
