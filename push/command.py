"""The commands `run`, `status` and `check`, for `headrace push` and for the single-file program."""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from headrace.push.config import PushConfig, PushError, read_config
from headrace.push.contents import GzipContent
from headrace.push.directories import expand
from headrace.push.gateway_client import FAILURES, GatewayClient
from headrace.push.sender import Sender
from headrace.push.source import Shared, StateFile, TailState, safe_text
from headrace.push.tailer import Tailer

logger = logging.getLogger(__name__)

EXIT_OK, EXIT_FINDINGS, EXIT_FAILED = 0, 1, 2
DEFAULT_CONFIG = Path("/etc/headrace/push.toml")
LOCK_FILE = "lock"
DESCRIPTION = (
    "Tails log files and sends their lines to a gateway: each line exactly once and in order, through rotation, "
    "restarts and days without a network."
)
VERBS = {
    "run": (
        "send lines until SIGTERM",
        "Sends the lines of the configured files until SIGTERM or Ctrl-C. Positions are stored in state_dir; the files "
        "are the buffer while the gateway is not reachable.",
        ("run --config push.toml", "run --config push.toml --dry-run"),
    ),
    "status": (
        "show how far each file is sent",
        "Shows how far each file is sent, from the state of a running or stopped client. Exit code 1: a file is "
        "stopped, or its lines are refused.",
        ("status --config push.toml", "status --config push.toml --format json"),
    ),
    "check": (
        "check configuration, files and gateway",
        "Checks the configuration, the permissions of files and directories, and the connection to each gateway. Exit "
        "code 1: something was found.",
        ("check --config push.toml",),
    ),
}
"""By verb: summary, description, examples."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verbs to a parser. Each sets `run_verb`, a function from arguments to exit code."""
    parser.description = DESCRIPTION
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for name, (summary, description, lines) in VERBS.items():
        epilog = "examples:\n" + "\n".join(f"  {parser.prog} {line}" for line in lines)
        verb = verbs.add_parser(
            name, help=summary, description=description, epilog=epilog, formatter_class=parser.formatter_class
        )
        verb.add_argument(
            "--config",
            type=Path,
            default=DEFAULT_CONFIG,
            metavar="FILE",
            help=f"configuration, TOML or JSON (default: {DEFAULT_CONFIG})",
        )
        verb.set_defaults(run_verb=FUNCTIONS[name])
        if name == "run":
            verb.add_argument("--dry-run", action="store_true", help="show files and positions, and change nothing")
            verb.add_argument(
                "--log-level",
                choices=("debug", "info", "warning", "error"),
                default="info",
                help="lowest level of log lines (default: info)",
            )
        if name == "status":
            verb.add_argument(
                "--format", choices=("text", "json"), default="text", help="output format (default: text)"
            )


def run(args: argparse.Namespace) -> int:
    """Runs the client. Returns after SIGTERM or SIGINT."""
    config = read_config(args.config)
    if args.dry_run:
        return _dry_run(config)
    logging.getLogger("headrace").setLevel(args.log_level.upper())
    lock = _lock(config.state_dir)
    try:
        return _run(config)
    finally:
        os.close(lock)


def _run(config: PushConfig) -> int:
    shared = Shared()
    state_file = StateFile(config.state_dir)
    tailer = Tailer(config, shared, state_file.read())
    sender = Sender(config, shared, state_file)

    def stop(*_: object) -> None:
        shared.stopping = True

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        sender.thread.start()
        logger.info("started gateway=%s rules=%d state_dir=%s", config.gateways[0], len(config.rules), config.state_dir)
        tailer.run()
        with shared.changed:
            shared.stopping = True
            shared.changed.notify_all()
        sender.thread.join()
    finally:
        tailer.close()
        for number, handler in previous.items():
            signal.signal(number, handler)
    if shared.failed is not None:
        raise shared.failed
    logger.info("stopped chunks=%d records=%d", shared.sent_chunks, shared.sent_records)
    return EXIT_OK


def _lock(directory: Path) -> int:
    """Locks the state directory for this process, and returns the descriptor."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise PushError(
            f"cannot write in {directory}: {error.strerror}; create state_dir and give this user access"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise PushError(
            f"{directory}: another client runs with this state_dir; stop it, or set another state_dir"
        ) from error
    return descriptor


def _dry_run(config: PushConfig) -> int:
    """Prints the files and positions of a run. Opens no session, so the positions come from the state file."""
    shared = Shared()
    tailer = Tailer(config, shared, StateFile(config.state_dir).read())
    try:
        for _ in range(2):  # compressed files are examined by the second scan
            tailer.scan()
        for file in sorted(tailer.open_files(), key=lambda one: one.path or ""):
            state = file.source.state
            target = state.topic or f"topic by log type {state.log_type}"
            amount = (
                "compressed"
                if isinstance(file.content, GzipContent)
                else f"{file.content.size() - state.position} bytes"
            )
            path = safe_text(file.path or state.path)
            print(f"{path}: {amount} from position {state.position} to {target}, source {state.id}")
        if not tailer.open_files():
            print("no file to send: see paths in the configuration, and: headrace push check")
    finally:
        tailer.close()
    return EXIT_OK


def status(args: argparse.Namespace) -> int:
    """Prints how far each file is sent."""
    config = read_config(args.config)
    entries = [_status_of(state) for state in StateFile(config.state_dir).read() if state.gone_at_s is None]
    if args.format == "json":
        print(json.dumps({"files": entries, "running": _is_running(config.state_dir)}, indent=2))
    else:
        print(f"client: {'running' if _is_running(config.state_dir) else 'not running'}")
        for entry in sorted(entries, key=lambda one: str(one["file"])):
            behind = "?" if entry["behind_bytes"] is None else entry["behind_bytes"]
            print(f"{entry['file']}: position {entry['position']}, {behind} bytes behind, {entry['status']}")
            if entry["problem"]:
                print(f"  {entry['problem']}")
    return EXIT_FINDINGS if any(entry["problem"] for entry in entries) else EXIT_OK


def _status_of(state: TailState) -> dict[str, Any]:
    path, size = _found_file(state)
    behind = None if size is None else max(0, size - state.position)
    word = "gone" if behind is None else "sending" if behind else "sent"
    return {
        "file": safe_text(path),
        "source_id": state.id,
        "topic": state.topic,
        "log_type": state.log_type,
        "position": state.position,
        "behind_bytes": behind,
        "status": "stopped" if state.stopped else "not sent" if state.problem else word,
        "problem": state.stopped or state.problem,
    }


def _found_file(state: TailState) -> tuple[str, Optional[int]]:
    """Returns the path of a source's file, which may have another name in its directory by now, and its size. Without
    the file, because it was deleted or compressed, returns its last path and None."""
    directory = os.path.dirname(state.path)
    try:
        siblings = sorted(os.path.join(directory, name) for name in os.listdir(directory))
    except OSError:
        siblings = []
    for path in (state.path, *siblings):
        try:
            found = os.stat(path)
        except OSError:
            continue
        if state.file is not None and found.st_ino == state.file.inode and not path.endswith(".gz"):
            return path, found.st_size
    return state.path, None


def _is_running(directory: Path) -> bool:
    try:
        descriptor = os.open(directory / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def check(args: argparse.Namespace) -> int:
    """Prints findings about files, the state directory and the gateways, one line each."""
    config = read_config(args.config)
    findings = _check_files(config)
    if not os.access(config.state_dir if config.state_dir.exists() else config.state_dir.parent, os.W_OK):
        findings.append(f"{config.state_dir}: not writable; create it and give this user access")
    findings += _check_gateways(config)
    for finding in findings:
        print(finding)
    if not findings:
        print("no findings")
    return EXIT_FINDINGS if findings else EXIT_OK


def _exists(path: str, failed: dict[str, OSError]) -> bool:
    """Whether a path exists. Adds it to `failed` if that cannot be known."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        failed[path] = error
        return False
    return True


def _check_files(config: PushConfig) -> list[str]:
    findings = []
    for rule in config.rules:
        for pattern in rule.paths:
            failed: dict[str, OSError] = {}
            paths = [
                path
                for path in expand(pattern, failed)
                if _exists(path, failed) and not rule.excludes(os.path.basename(path))
            ]
            print(f"{pattern}: {len(paths)} files, to {rule.topic or f'the topic of log type {rule.log_type}'}")
            findings += [
                f"{safe_text(path)}: {error.strerror}; give this user permission, for example by its group"
                for path, error in failed.items()
            ]
            if not paths and not failed:
                findings.append(f"{pattern}: matches no file; a file that appears later is sent")
            findings += [
                f"{safe_text(path)}: not readable; give this user permission, for example by its group"
                for path in paths
                if not os.access(path, os.R_OK)
            ]
            parents = {os.path.dirname(path) for path in paths}
            findings += [
                f"{safe_text(parent)}: not listable; renamed files cannot be found"
                for parent in parents
                if not os.access(parent, os.R_OK | os.X_OK)
            ]
    return findings


def _check_gateways(config: PushConfig) -> list[str]:
    findings = []
    client = GatewayClient(config)
    for url in config.gateways:
        try:
            # Without a source id no session opens: a gateway that accepts the credentials reports the missing field.
            answer = client.request("POST", url, "/v1/sessions", b"{}", {"Content-Type": "application/json"})
        except FAILURES as error:
            findings.append(f"{url}: not reachable: {error}; check the address, TLS settings and firewall")
            continue
        if answer.status in (401, 403):
            findings.append(f"{url}: refuses the credentials: {answer.problem}; check user, password_file, token_file")
        elif answer.status not in (400, 422):
            findings.append(f"{url}: is no gateway with sessions: {answer.problem}; check the URL")
    client.close()
    return findings


FUNCTIONS = {"run": run, "status": status, "check": check}


class PlainHelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Finds the width of the terminal by `os`. argparse would import `shutil`, with three compressors: 0.6 MB."""

    def __init__(self, prog: str, **options: Any) -> None:
        try:
            columns = os.get_terminal_size().columns
        except OSError:
            columns = 80
        super().__init__(prog, **{"width": columns - 2, **options})


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the single-file program and returns its exit code."""
    parser = argparse.ArgumentParser(prog="headrace-push", formatter_class=PlainHelpFormatter)
    configure(parser)
    args = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.INFO)
    logging.Formatter.converter = time.gmtime
    try:
        return int(args.run_verb(args))
    except PushError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
