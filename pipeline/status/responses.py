"""The share of error responses of registry, console and gateway in the last minutes.

Their counts of responses grow from the start of a server on. So evaluations of the alerts record the counts once a
minute in `logs/responses.jsonl`, and a status compares the present counts with those of five minutes ago or more. It
finds no errors where no alerts are evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import StatusFinding, finding
from headrace.pipeline.status.metric import StatusMetric
from headrace.pipeline.status.probe import ProbeResult, ResponseCounts
from headrace.pipeline.status.samples import StatusSample, append_sample, read_samples
from headrace.pipeline.status.wording import count_text
from headrace.settings.masking import mask_passwords

SAMPLES_NAME: Final = "responses.jsonl"
SAMPLE_MS: Final = 50_000
"""Less than the time between two evaluations, so that each records a sample."""
AGE_MS_MIN: Final = 300_000
AGE_MS_MAX: Final = 1_200_000
"""Present counts are compared with the newest sample of this age; cron may evaluate the alerts every ten minutes."""
ERROR_SHARE_MAX: Final = 0.01
ERRORS_MIN: Final = 5
"""At most this number of errors is no finding, whatever their share."""


def record_responses(context: StatusContext, probed: Mapping[str, ProbeResult]) -> None:
    """Appends the counts of responses to `logs/responses.jsonl`."""
    counts = {url: one for result in probed.values() for url, one in result.responses.items()}
    if counts:
        values = {f"{url} {name}": number for url, one in counts.items() for name, number in one._asdict().items()}
        append_sample(context.log_dir / SAMPLES_NAME, context.now_ms, SAMPLE_MS, lambda: values)


def error_shares(
    context: StatusContext, probed: Mapping[str, ProbeResult]
) -> tuple[list[StatusMetric], list[StatusFinding]]:
    """Returns the shares of error responses by part, and a finding for each server with too many."""
    metrics, findings = [], []
    samples = read_samples(context.log_dir / SAMPLES_NAME)
    for part, result in probed.items():
        recent = {url: recent_counts(samples, url, counts, context.now_ms) for url, counts in result.responses.items()}
        known = {url: one for url, one in recent.items() if one is not None and one.all}
        if known:
            ratio = sum(one.errors for one in known.values()) / sum(one.all for one in known.values())
            metrics.append(StatusMetric("headrace_up_part_error_ratio", ratio, (("part", part),)))
        findings += [
            _finding(part, url, one, context)
            for url, one in known.items()
            if one.errors > ERRORS_MIN and one.errors > ERROR_SHARE_MAX * one.all
        ]
    return metrics, findings


def recent_counts(
    samples: Sequence[StatusSample], url: str, counts: ResponseCounts, now_ms: int
) -> ResponseCounts | None:
    """Returns the responses since the newest sample of at least `AGE_MS_MIN`; None without one.

    Args:
        samples: the recorded samples, oldest first.
        url: the server.
        counts: its counts now. They are less than recorded ones if it has restarted: then all are recent.
    """
    name = f"{url} all"
    past = [one for one in samples if name in one.values and AGE_MS_MIN <= now_ms - one.time_ms <= AGE_MS_MAX]
    if not past:
        return None
    before = ResponseCounts(past[-1].values[name], past[-1].values.get(f"{url} errors", 0))
    if counts.all < before.all or counts.errors < before.errors:
        return counts
    return ResponseCounts(counts.all - before.all, counts.errors - before.errors)


def _finding(part: str, url: str, recent: ResponseCounts, context: StatusContext) -> StatusFinding:
    problem = (
        f"{count_text(recent.errors, 'response')} of {recent.all:,} of {mask_passwords(url)} in the last minutes "
        f"had a status 5xx ({recent.errors / recent.all:.1%})"
    )
    is_own = context.live is not None and part in context.live.pids
    return finding("server-errors", part, problem, show=f"tail {context.log_dir / part}.log" if is_own else "")
