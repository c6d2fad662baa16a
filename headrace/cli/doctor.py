"""`headrace doctor`: checks the installation and the configuration of this machine."""

from __future__ import annotations

import argparse
import dataclasses

from headrace.cli.colour import print_report_line
from headrace.cli.command import (
    EXIT_FINDINGS,
    EXIT_OK,
    FLAGS,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
    settings_from,
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Checks installation and configuration (versions, Java, directories, file system, ports, the registry's "
        "database, the commit log), then shows the findings of `headrace status`. Names a remedy for each problem. "
        "Changes nothing."
    )
    parser.epilog = examples("doctor", "doctor --config /etc/headrace/headrace.toml --format json") + (
        "\n\nexit codes:\n  0  all checks passed\n  1  problems, each with a remedy\n"
    )
    add_format_flag(parser)
    add_settings_flags(parser, tuple(key for key in FLAGS if key != "data_dir"))


def run(args: argparse.Namespace) -> int:
    from headrace.cli.installation import installation_checks  # imports the libraries of all extras

    results = []
    for result in installation_checks(settings_from(args)):
        results.append(result)
        if args.format == "text":
            print_report_line(f"{'ok     ' if result.is_ok else 'PROBLEM'} {result.name}: {result.finding}", flush=True)
            if result.remedy:
                print(f"        {result.remedy}", flush=True)
    if args.format == "json":
        print_json([{**dataclasses.asdict(result), "is_ok": result.is_ok} for result in results])
    return EXIT_OK if all(result.is_ok for result in results) else EXIT_FINDINGS
