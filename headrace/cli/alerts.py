"""`headrace alerts`: alerts about findings of `headrace status`, see `pipeline.alerts`. This module only prints."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import secrets
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

from headrace.cli.command import (
    EXIT_FAILED,
    EXIT_FINDINGS,
    EXIT_OK,
    FLAGS,
    CommandError,
    add_author_flag,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
    print_table,
    process_user,
    settings_from,
)
from headrace.cli.terminal import terminal_width
from headrace.pipeline.text_table import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.pipeline.alerts.alert import Alert
    from headrace.pipeline.alerts.delivery import Silence
    from headrace.pipeline.alerts.evaluate import AlertResult
    from headrace.pipeline.alerts.storage import AlertStore
    from headrace.settings import Settings

logger = logging.getLogger(__name__)

INTERVAL_MS: Final = 60_000
LOG_LINES: Final = 50
STATUS_KEYS: Final = tuple(key for key in FLAGS if key != "data_dir")
EXIT_CODES: Final = """

exit codes:
  0  no alert fires
  1  an alert fires that is not silenced
  2  failure: the alerts could not be evaluated, or a target did not accept one
"""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for name, configure_verb in VERBS.items():
        configure_verb(verbs, name)


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    description: str,
    epilog: str,
    keys: Sequence[str] = (),
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=summary, description=description, epilog=epilog)
    parser.set_defaults(run=run)
    add_settings_flags(parser, keys)
    return parser


def _configure_list(verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = _verb(
        verbs,
        name,
        list_alerts,
        "show firing and pending alerts, and active silences",
        "Shows the firing and pending alerts of the newest evaluation, and the active silences. Evaluates nothing.",
        examples("alerts list", "alerts list --all --format json"),
    )
    parser.add_argument("--all", action="store_true", help="also show alerts that were resolved within 30 days")
    add_format_flag(parser)


def _configure_check(verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = _verb(
        verbs,
        name,
        run,
        "evaluate the rules once and deliver alerts, for cron",
        "Checks the status of the platform, evaluates the rules, and sends new, resolved and repeated alerts to the "
        "targets of the settings. Run it once a minute to once in ten minutes with cron, or use `headrace alerts run`.",
        examples("alerts check", "alerts check --format json") + EXIT_CODES,
        STATUS_KEYS,
    )
    add_format_flag(parser)


def _configure_run(verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    _verb(
        verbs,
        name,
        run_loop,
        "evaluate the rules and deliver alerts once a minute",
        "Does the same as `headrace alerts check`, once a minute until SIGTERM. `headrace up` runs it if the settings "
        "name a target. Several may run: each alert is delivered once.",
        examples("alerts run"),
        STATUS_KEYS,
    )


def _configure_test(verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = _verb(
        verbs,
        name,
        run_test,
        "send a test alert to every target",
        "Sends an alert that fires and is then resolved to each target of the settings, and reports each result.",
        examples("alerts test") + "\n\nexit codes:\n  0  all targets accepted it\n  2  failure\n",
    )
    add_format_flag(parser)


def _configure_silence(verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = _verb(
        verbs,
        name,
        add_silence,
        "suppress notifications for a time",
        "Suppresses notifications of alerts whose kind and subject match, and prints the id of the silence. Patterns "
        "may contain *, ? and […]. When the silence ends, alerts that still fire are delivered.",
        examples(
            "alerts silence --subject 'payments.*' --for 2h --reason 'moving to new brokers, ticket 4711'",
            "alerts silence --kind disk-low --for 1d --reason 'new disk arrives tomorrow'",
        ),
    )
    parser.add_argument("--kind", default="*", metavar="PATTERN", help="kind of the finding, such as audit-missing")
    parser.add_argument("--subject", default="*", metavar="PATTERN", help="its subject, such as a topic")
    parser.add_argument("--for", dest="duration", required=True, metavar="TIME", help="duration: 90s, 30m, 2h, 7d")
    parser.add_argument("--reason", required=True, metavar="TEXT", help="the reason, shown by `headrace alerts list`")
    parser.add_argument("--dry-run", action="store_true", help="show the alerts that would be silenced now")
    add_author_flag(parser)
    add_format_flag(parser)


def _configure_unsilence(verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = _verb(
        verbs,
        name,
        end_silence,
        "end a silence now",
        "Ends a silence. Alerts that still fire are delivered by the next evaluation.",
        examples("alerts unsilence 3f9a0c11"),
    )
    parser.add_argument("id", metavar="ID", help="the id of the silence, see headrace alerts list")


def _configure_log(verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = _verb(
        verbs,
        name,
        show_log,
        "show the newest deliveries",
        "Shows the newest deliveries, newest first: alert, event, target, number of attempts, outcome and error. The "
        "newest 10,000 are stored.",
        examples("alerts log", "alerts log --count 500 --format json"),
    )
    parser.add_argument(
        "--count", type=_count, default=LOG_LINES, metavar="N", help="number of deliveries (default: %(default)s)"
    )
    add_format_flag(parser)


def _configure_rules(verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    parser = _verb(
        verbs,
        name,
        show_rules,
        "show the rule of each kind of findings",
        "Shows for each kind of findings of `headrace status` the severity of its alerts, how long the finding must be "
        "present before it fires, and absent before it is resolved. `[[alerts.rules]]` in the settings file changes "
        "rules.",
        examples("alerts rules"),
    )
    add_format_flag(parser)


VERBS: Final = {
    "list": _configure_list,
    "check": _configure_check,
    "run": _configure_run,
    "test": _configure_test,
    "silence": _configure_silence,
    "unsilence": _configure_unsilence,
    "log": _configure_log,
    "rules": _configure_rules,
}


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 10000")
    return int(text)


def list_alerts(args: argparse.Namespace) -> int:
    from headrace.pipeline.alerts.errors import AlertError

    now_ms = _now_ms()
    try:
        with _store(settings_from(args), creates=False) as store, store.reading() as reader:
            alerts = reader.alerts(None if args.all else now_ms + 1)
            silences, evaluated_ms = reader.silences(now_ms), reader.evaluated_ms()
    except AlertError as error:
        raise CommandError(str(error)) from error
    if args.format == "json":
        documents = [_alert_document(one, silences, now_ms) for one in alerts]
        print_json(
            {
                "format": 1,
                "evaluated_at_ms": evaluated_ms,
                "alerts": documents,
                "silences": [dataclasses.asdict(one) for one in silences],
            }
        )
        return EXIT_OK
    _print_alerts(alerts, silences, now_ms)
    if silences:
        print("\nsilences:")
        _print_silences(silences)
    print(f"\n{_evaluated_text(evaluated_ms, now_ms)}")
    return EXIT_OK


def _evaluated_text(evaluated_ms: int | None, now_ms: int) -> str:
    from headrace.pipeline.status.wording import age_text

    if evaluated_ms is None:
        return "not evaluated yet; run headrace alerts check, or headrace up with a target of alerts"
    return f"evaluated {age_text(max(0, now_ms - evaluated_ms))} ago"


def _print_alerts(alerts: Sequence[Alert], silences: Sequence[Silence], now_ms: int) -> None:
    from headrace.pipeline.alerts.alert import AlertState
    from headrace.pipeline.alerts.delivery import silence_of
    from headrace.pipeline.status.wording import time_text

    if not alerts:
        print("no alerts")
        return
    order = {AlertState.FIRING: 0, AlertState.PENDING: 1, AlertState.RESOLVED: 2}
    rows = [
        (
            f"{one.state}{' (silenced)' if silence_of(one, silences, now_ms) else ''}",
            one.severity.value,
            time_text(one.since_ms),
            one.kind,
            printable(one.subject),
            printable(one.problem),
            one.id,
        )
        for one in sorted(alerts, key=lambda one: (order[one.state], one.severity, -one.since_ms))
    ]
    header = ("state", "severity", "since", "kind", "subject", "problem", "id")
    print_table(header, rows, width_max=terminal_width(), fixed=(0, 1, 2, 3, 6))


def _print_silences(silences: Sequence[Silence]) -> None:
    from headrace.pipeline.status.wording import time_text

    rows = [
        (one.id, *map(printable, (one.kind, one.subject, time_text(one.ends_ms), one.author, one.reason)))
        for one in silences
    ]
    print_table(("id", "kind", "subject", "ends", "author", "reason"), rows, width_max=terminal_width(), fixed=(0, 3))


def _alert_document(alert: Alert, silences: Sequence[Silence], now_ms: int) -> dict[str, object]:
    from headrace.pipeline.alerts.delivery import silence_of

    silence = silence_of(alert, silences, now_ms)
    return {**dataclasses.asdict(alert), "silence": None if silence is None else silence.id}


def run(args: argparse.Namespace) -> int:
    from headrace.pipeline.alerts.errors import AlertError
    from headrace.pipeline.alerts.evaluate import evaluate_alerts

    try:
        result = evaluate_alerts(settings_from(args))
    except AlertError as error:
        raise CommandError(str(error)) from error
    now_ms = _now_ms()
    if args.format == "json":
        document = {
            "format": 1,
            "firing": [dataclasses.asdict(one) for one in result.firing],
            "silenced": [dataclasses.asdict(one) for one in result.silenced],
            "delivered": result.delivered,
            "failures": dict(result.failures),
        }
        print_json(document)
    else:
        _print_alerts(result.firing, (), now_ms)
        if result.silenced:
            print(f"{len(result.silenced):,} more are silenced: headrace alerts list")
    if result.failures:
        raise CommandError(_failure_text(result))
    return EXIT_FINDINGS if result.firing else EXIT_OK


def _failure_text(result: AlertResult) -> str:
    failures = "; ".join(f"{name}: {error}" for name, error in sorted(result.failures.items()))
    return f"not all alerts were delivered, and they are sent again by the next evaluation: {failures}"


def run_loop(args: argparse.Namespace) -> int:
    from headrace.pipeline.alerts.errors import AlertError
    from headrace.pipeline.alerts.evaluate import evaluate_alerts
    from headrace.pipeline.alerts.target import targets_of
    from headrace.settings import SettingsError

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        targets = targets_of(settings_from(args))
    except AlertError as error:
        raise CommandError(str(error)) from error
    print(f"ready alerts={len(targets)}", flush=True)
    while not stop.is_set():
        try:
            # Read again, so that changed rules and targets, and a `headrace up` that has started, take effect.
            evaluate_alerts(settings_from(args))
        except (AlertError, SettingsError) as error:
            logger.error("alerts_not_evaluated error=%s", error)
        except Exception:  # the next evaluation may succeed, and a dead watcher reports nothing
            logger.exception("alerts_not_evaluated")
        stop.wait((INTERVAL_MS - _now_ms() % INTERVAL_MS) / 1000)
    return EXIT_OK


def run_test(args: argparse.Namespace) -> int:
    from headrace.pipeline.alerts.errors import AlertError
    from headrace.pipeline.alerts.evaluate import send_test
    from headrace.pipeline.alerts.target import targets_of

    try:
        targets = targets_of(settings_from(args))
    except AlertError as error:
        raise CommandError(str(error)) from error
    if not targets:
        raise CommandError(
            "the settings name no target; set alerts.webhook_urls, alerts.alertmanager_url or alerts.notify"
        )
    results = send_test(targets, _now_ms())
    if args.format == "json":
        print_json([{"target": name, "error": reason} for name, reason in results.items()])
    else:
        for name, reason in results.items():
            print(f"{name}: {f'failed: {reason}' if reason else 'ok'}")
    return EXIT_FAILED if any(results.values()) else EXIT_OK


def add_silence(args: argparse.Namespace) -> int:
    from headrace.pipeline.alerts.alert import AlertState
    from headrace.pipeline.alerts.delivery import Silence
    from headrace.pipeline.alerts.errors import AlertError
    from headrace.settings.values import Duration

    try:
        duration = Duration.parse(args.duration)
    except ValueError as error:
        raise CommandError(f"--for {args.duration}: {error}") from error
    if not duration.ms:
        raise CommandError("--for is zero; expected a duration such as 2h")
    if not args.reason.strip():
        raise CommandError("--reason is empty; expected an explanation of the silence")
    if args.kind == args.subject == "*":
        raise CommandError("a silence needs --kind or --subject, so that it does not hide all alerts")
    _check_kind(args.kind)
    now_ms = _now_ms()
    silence = Silence(
        id=secrets.token_hex(4),
        kind=args.kind,
        subject=args.subject,
        reason=args.reason.strip(),
        author=args.author or process_user(),
        created_ms=now_ms,
        ends_ms=now_ms + duration.ms,
    )
    try:
        with _store(settings_from(args), creates=not args.dry_run) as store:
            if not args.dry_run:
                with store.changing() as change:
                    change.add_silence(silence)
            with store.reading() as reader:
                alerts = [one for one in reader.alerts(now_ms) if silence.matches(one, now_ms)]
    except AlertError as error:
        raise CommandError(str(error)) from error
    alerts = [one for one in alerts if one.state is not AlertState.RESOLVED]
    if args.format == "json":
        document = {"dry_run": args.dry_run, "silence": dataclasses.asdict(silence)}
        print_json({**document, "alerts": [dataclasses.asdict(one) for one in alerts]})
    elif args.dry_run:
        _print_alerts(alerts, (), now_ms)
    else:
        print(silence.id)
    return EXIT_OK


def _check_kind(pattern: str) -> None:
    from fnmatch import fnmatchcase

    from headrace.pipeline.status.finding import KINDS

    if not any(fnmatchcase(kind, pattern) for kind in KINDS):
        raise CommandError(f"--kind {pattern!r} matches no kind of findings; see headrace alerts rules")


def end_silence(args: argparse.Namespace) -> int:
    from headrace.pipeline.alerts.errors import AlertError

    try:
        with _store(settings_from(args)) as store, store.changing() as change:
            is_ended = change.end_silence(args.id, _now_ms())
    except AlertError as error:
        raise CommandError(str(error)) from error
    if not is_ended:
        raise CommandError(f"there is no active silence {args.id!r}; see headrace alerts list")
    return EXIT_OK


def show_log(args: argparse.Namespace) -> int:
    from headrace.pipeline.alerts.errors import AlertError
    from headrace.pipeline.status.wording import time_text

    try:
        with _store(settings_from(args), creates=False) as store, store.reading() as reader:
            deliveries, alerts = reader.log(args.count), {one.id: one for one in reader.alerts()}
    except AlertError as error:
        raise CommandError(str(error)) from error
    if args.format == "json":
        print_json([dataclasses.asdict(one) for one in deliveries])
        return EXIT_OK
    rows = [
        (
            time_text(one.created_ms),
            one.event.value,
            alerts[one.alert_id].kind if one.alert_id in alerts else "",
            printable(alerts[one.alert_id].subject) if one.alert_id in alerts else one.alert_id,
            one.target,
            str(one.attempts),
            one.outcome.value,
            printable(one.error),
        )
        for one in deliveries
    ]
    header = ("created", "event", "kind", "subject", "target", "attempts", "outcome", "error")
    print_table(header, rows, (5,), terminal_width(), (0, 1, 5, 6))
    return EXIT_OK


def show_rules(args: argparse.Namespace) -> int:
    from headrace.pipeline.alerts.errors import AlertError
    from headrace.pipeline.alerts.rule import default_rule, rules_of
    from headrace.settings.values import Duration

    try:
        rules = rules_of(settings_from(args).alerts.rules)
    except AlertError as error:
        raise CommandError(str(error)) from error
    if args.format == "json":
        print_json([{**dataclasses.asdict(one), "changed": one != default_rule(kind)} for kind, one in rules.items()])
        return EXIT_OK
    rows = [
        (
            kind,
            one.severity.value,
            str(Duration(one.hold_ms)) if one.hold_ms else "0",
            str(Duration(one.keep_firing_ms)) if one.keep_firing_ms else "0",
            "settings" if one != default_rule(kind) else "default",
        )
        for kind, one in rules.items()
    ]
    print_table(("kind", "severity", "hold", "keep firing", "source"), rows, (2, 3))
    return EXIT_OK


def _store(settings: Settings, *, creates: bool = True) -> AlertStore:
    from headrace.pipeline.alerts.storage import AlertStore, alert_address

    return AlertStore(alert_address(settings), creates=creates)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
