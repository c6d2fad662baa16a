"""`headrace status`: the one place to look, see `pipeline.status`. This module only prints."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.cli.colour import print_report_line
from headrace.cli.command import FLAGS, add_format_flag, add_settings_flags, examples, print_json, settings_from

if TYPE_CHECKING:
    from headrace.pipeline.status.finding import PlatformStatus, StatusFinding

FORMATS = ("text", "json", "prometheus")
WORDS = {1: "ATTENTION", 2: "FAILURE"}
PROBLEM_CHARS_MAX = 400  # of a problem in the text, so that all findings fit on a screen; JSON has all of it


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows whether the platform works: what is wrong, the worst first, each with the command that shows more and "
        "the one that repairs it; then facts. Reads only, and changes nothing."
    )
    parser.epilog = examples("status", "status --format json", "status --format prometheus") + (
        "\n\nexit codes:\n  0  all well\n  1  something needs attention\n"
        "  2  failure: a part does not respond, data is missing or about to be lost, or a check could not run\n"
    )
    add_format_flag(parser, FORMATS)
    add_settings_flags(parser, tuple(key for key in FLAGS if key != "data_dir"))


def run(args: argparse.Namespace) -> int:
    from headrace.pipeline.status.collect import platform_status

    status = platform_status(settings_from(args))
    if args.format == "json":
        document = {"format": 1, "severity": status.severity, "summary": summary(status), **dataclasses.asdict(status)}
        del document["skipped"], document["skip_reason"]  # this command skips no source
        print_json(document)
    elif args.format == "prometheus":
        from headrace.pipeline.metrics import render, status_metrics

        sys.stdout.write(render(status_metrics(status))[0].decode())
    else:
        print_status(status)
    return status.severity


def print_status(status: PlatformStatus) -> None:
    """Prints the summary, the findings and the facts as text."""
    print_report_line(summary(status))
    for found in status.findings:
        print_report_line(f"{WORDS[found.severity]} {_finding_text(found)}")
        print(f"    show: {found.show} | repair: {found.repair}")
    shown = [fact for fact in status.facts if fact.text]
    width = max((len(fact.name) for fact in shown), default=0)
    for fact in shown:
        print(f"{fact.name:{width}}  {fact.text}")


def summary(status: PlatformStatus) -> str:
    """Returns a sentence: all well, or everything that is wrong, the worst first."""
    if not status.findings:
        return "ok: all well"
    kinds = {found.kind: [one for one in status.findings if one.kind == found.kind] for found in status.findings}
    named = "; ".join(f"{_subjects_text(of_kind)} {of_kind[0].title}" for of_kind in kinds.values())
    return f"{WORDS[status.severity]}: {named}"


def _subjects_text(of_kind: Sequence[StatusFinding]) -> str:
    """Returns the subject of findings of one kind, or the number of all subjects and the first of them."""
    merged = dataclasses.replace(of_kind[0], count=sum(found.count for found in of_kind))
    return merged.subjects_text


def _finding_text(found: StatusFinding) -> str:
    from headrace.pipeline.status.wording import time_text

    since = "" if found.since_ms is None else f" (since {time_text(found.since_ms)})"
    problem = " ".join(f"{found.problem}{found.example}".split())
    if len(problem) > PROBLEM_CHARS_MAX:
        problem = f"{problem[:PROBLEM_CHARS_MAX]}…"
    return f"{found.subjects_text} {found.title}: {problem}{since}"
