"""The tables of the audit's database.

`audit_row` is the source: all other tables but `ingested`, `counted`, `accepted` and `corrupt_batch` derive from it.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

FORMAT: Final = 6
"""Format of the tables. A database with another one is refused: it is rebuilt from the audit topic and the commits."""

METADATA: Final = sa.MetaData()


def _text(name: str, *, key: bool = False, default: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.Text, primary_key=key, nullable=False, server_default=default)


def _number(name: str, *, key: bool = False, default: str | None = None) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, primary_key=key, nullable=False, autoincrement=False, server_default=default)


def _number_or_null(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=True)


STORE_STATE: Final = sa.Table(
    "store_state",
    METADATA,
    _number("id", key=True),  # always 1
    _number("format"),
    _number("revision"),  # grows with each write of verdicts
    _text("policy"),  # the settings that the stored verdicts depend on
    _number("checked_at_ms"),  # time of the newest update of the verdicts
    _number("pruned_at_ms"),  # time of the newest deletion of old windows
    _number("ingested_at_ms"),  # when the audit topic was last read to its end; at first, when the tables were created
)

AUDIT_ROW: Final = sa.Table(
    "audit_row",
    METADATA,
    _text("id", key=True),
    _text("tier"),
    _text("outcome"),
    _text("topic"),
    _number("window_start_ms"),
    _number("window_ms"),
    _number("count"),
    _number("bytes"),
    _number("fingerprint"),  # as a signed number
    _number("sent"),
    _number("crashed"),
    _number("partition"),
    _number("start"),
    _number("end"),
    _text("application"),
    _text("host"),
    _text("instance"),
    _number("emitted_at_ms"),
    _text("hash"),
    _text("datacenter", default=""),
    _number("late", default="0"),
    _number("no_time", default="0"),
    _number("errors", default="0"),
    _number("latency_mean_ms", default="0"),
    _number("latency_p95_ms", default="0"),
    _number("latency_p99_ms", default="0"),
    _number("latency_max_ms", default="0"),
    sa.Index("audit_row_window", "topic", "window_start_ms"),
)

INGESTED: Final = sa.Table(
    "ingested", METADATA, _text("topic", key=True), _number("partition", key=True), _number("next_offset")
)

COUNTED: Final = sa.Table("counted", METADATA, _text("topic", key=True), _number("commit_number"), _text("sha256"))

ACCEPTED: Final = sa.Table(
    "accepted",
    METADATA,
    _text("topic", key=True),
    _number("window_start_ms", key=True),
    _text("verdict"),
    _number("difference"),
    _text("reason"),
    _text("accepted_by"),
    _number("accepted_at_ms"),
)

CORRUPT_BATCH: Final = sa.Table(
    "corrupt_batch",
    METADATA,
    _text("log_id", key=True),  # of the auditor's positions: topic and topic id
    _number("partition", key=True),
    _number("start", key=True),
    _number("end"),
    _text("topic"),
    _text("reason"),
    _number("found_at_ms"),
)
"""Record batches that the auditor could not read."""

TIER_COUNT: Final = sa.Table("tier_count", METADATA, _text("tier", key=True), _number("last_counted_ms"))

OFFSET_RANGE: Final = sa.Table(
    "offset_range",
    METADATA,
    _text("topic", key=True),
    _text("kind", key=True),  # counted (merged), overlap (merged) or skipped
    _number("partition", key=True),
    _number("start", key=True),
    _number("end", key=True),
)

TOUCHED_WINDOW: Final = sa.Table(
    "touched_window", METADATA, _text("topic", key=True), _number("window_start_ms", key=True)
)
"""Windows without an up-to-date verdict."""

TOPIC_STATE: Final = sa.Table(
    "topic_state",
    METADATA,
    _text("topic", key=True),
    # Row locks of this table serialize all changes of a topic on PostgreSQL.
    _number("is_read", default="0"),
    _number("is_loaded", default="0"),
    _number("has_scattered", default="0"),
    _number("all_producers_count", default="0"),
    _text(
        "overlaps", default=""
    ),  # the overlaps and holes of the counted offsets that the verdicts consider, as hashes
    _text("holes", default=""),
    _text("verdict", default="complete"),
    _number("findings", default="0"),
    _number("pending", default="0"),
    _number("missing", default="0"),
    _number("extra", default="0"),
    _number_or_null("open_log_ms"),  # the first window that is not final in the log; NULL if all are
    _number_or_null("open_loaded_ms"),
    _number("last_counted_ms", default="0"),
    _number("messages_24h", default="0"),
    _number_or_null("valid_from_ms"),  # of topics with a window SCATTERED_MS: like the columns of window_verdict
    _number_or_null("valid_until_ms"),
)

WINDOW_VERDICT: Final = sa.Table(
    "window_verdict",
    METADATA,
    _text("topic", key=True),
    _number("window_start_ms", key=True),
    _text("verdict"),
    _text("hop"),
    _number("difference"),
    _number("missing"),
    _number("extra"),
    _number("sent"),
    _number_or_null("acknowledged"),
    _number_or_null("stored"),
    _number_or_null("written"),
    _number_or_null("quarantined"),
    _text("consumed"),  # JSON: messages by application; "" for none
    _number("crashed"),
    _text("sentence"),
    _number_or_null("log_99_ms"),
    _number_or_null("log_999_ms"),
    _number_or_null("log_all_ms"),
    _number_or_null("loaded_99_ms"),
    _number_or_null("loaded_999_ms"),
    _number_or_null("loaded_all_ms"),
    _number_or_null("latency_ms"),
    _number("is_counted", default="0"),  # in `completeness`
    _number("first_counted_ms"),
    _number("last_counted_ms"),
    _number("changed_at_ms"),
    # The verdict holds at times in [valid_from_ms, valid_until_ms), as long as no counts arrive; NULL is unbounded.
    _number_or_null("valid_from_ms"),
    _number_or_null("valid_until_ms"),
)

sa.Index(
    "window_verdict_differs",
    WINDOW_VERDICT.c.topic,
    WINDOW_VERDICT.c.window_start_ms,
    sqlite_where=sa.text("verdict NOT IN ('complete', 'untracked')"),
    postgresql_where=sa.text("verdict NOT IN ('complete', 'untracked')"),
)
sa.Index(
    "window_verdict_untracked",
    WINDOW_VERDICT.c.topic,
    WINDOW_VERDICT.c.window_start_ms,
    sqlite_where=sa.text("verdict = 'untracked'"),
    postgresql_where=sa.text("verdict = 'untracked'"),
)
for _name in ("valid_from_ms", "valid_until_ms"):
    sa.Index(
        f"window_verdict_{_name}",
        WINDOW_VERDICT.c[_name],
        sqlite_where=sa.text(f"{_name} IS NOT NULL"),
        postgresql_where=sa.text(f"{_name} IS NOT NULL"),
    )
sa.Index("window_verdict_last_counted", WINDOW_VERDICT.c.last_counted_ms)

COMPLETENESS: Final = sa.Table(
    "completeness",
    METADATA,
    _text("tier", key=True),  # log or loaded, for 99.9 %; with another share, such as `log 99`
    _number("place", key=True),  # index of the bound in `COMPLETENESS_BOUNDS_MS`
    _number("windows"),
    _number("sum_ms"),
)
"""How many windows have become complete, by the time from their end until they had a share of their messages."""

STRIP: Final = sa.Table(
    "strip",
    METADATA,
    _text("topic", key=True),
    _number("day", key=True),  # days since 1970-01-01
    sa.Column("states", sa.LargeBinary, nullable=False),
)

EVENT: Final = sa.Table(
    "event",
    METADATA,
    _text("id", key=True),
    _text("topic"),
    _text("verdict"),
    _text("hop"),
    _number("start_ms"),
    _number("end_ms"),
    _number("windows"),
    _number("missing"),
    _number("extra"),
    _text("producers"),  # JSON: pairs of application and host
    _text("sentence"),
    _number("opened_at_ms"),
    _number("changed_at_ms"),
    _number_or_null("closed_at_ms"),
    _text("resolution"),
    sa.Index("event_topic", "topic"),
    sa.Index("event_start", "start_ms"),
    sa.Index("event_end", "end_ms"),
)
