"""Measures `headrace compat check` with 1,000 schemas of 40 fields and 7 KB, and the share of each phase.

    python -m bench.compat [--schemas 1000] [--runs 3]

Each row is the shortest of several cold runs of `headrace compat check` in a new process: against a directory, a git
branch and a registry with as many subjects, with all schemas changed and with one in fifty. The same run measures the
interpreter's start, as a lower bound, and a bare `json.loads` of every text. The last rows divide the CPU time of one
process by phase. Other load on the machine doubles the figures, so compare only rows of one run.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headrace.avro_schema import parse_schema
from headrace.avro_schema.json_reader import read_json
from headrace.compat import CompatibilityLevel, VersionedSchema, check_level

FIELDS = 40
CHANGED_STEP = 50
DOC = "in which unit it is given and when it is left out."
PHASES = 300
"""The number of schemas that are checked in one process to measure the phases."""

TYPES: tuple[Any, ...] = (
    "long",
    "string",
    ["null", "string"],
    {"type": "long", "logicalType": "timestamp-millis"},
    ["null", "double"],
    {"type": "array", "items": "string"},
    {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 4},
    {"type": "map", "values": "long"},
)


def schema_text(number: int, *, is_new: bool) -> str:
    """Returns a formatted schema; the new version has an additional field and other documentation."""
    fields: list[dict[str, Any]] = []
    for index in range(FIELDS - 1):
        node = TYPES[(number + index) % len(TYPES)]
        field = {
            "name": f"attribute_{index}_of_event",
            "type": node,
            "doc": f"What number {index} means in event {number}, {DOC}",
        }
        if isinstance(node, list):
            field["default"] = None
        fields.append(field)
    fields.append(
        {
            "name": "state",
            "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID", "SENT"], "default": "NEW"},
        }
    )
    if is_new:
        fields.append({"name": "note", "type": ["null", "string"], "default": None, "doc": "Added."})
    head = {"type": "record", "name": f"Event{number}", "namespace": "bench.events", "doc": "One event."}
    lines = ",\n    ".join(json.dumps(field) for field in fields)
    return f'{json.dumps(head)[:-1]},\n  "fields": [\n    {lines}\n  ]\n}}\n'


def write_schemas(directory: Path, count: int, is_new: Callable[[int], bool]) -> Path:
    directory.mkdir()
    for number in range(count):
        (directory / f"event{number}.avsc").write_text(schema_text(number, is_new=is_new(number)), encoding="utf-8")
    return directory


def seconds(arguments: list[str], directory: Path, runs: int) -> tuple[float, float]:
    """Returns the shortest wall-clock and CPU time of several cold runs, including child processes."""
    best, best_cpu = float("inf"), float("inf")
    for _ in range(runs):
        begin, cpu = time.perf_counter(), os.times()
        completed = subprocess.run(arguments, cwd=directory, capture_output=True, text=True, check=False)
        best, after = min(best, time.perf_counter() - begin), os.times()
        used = after.children_user + after.children_system - cpu.children_user - cpu.children_system
        best_cpu = min(best_cpu, used)
        if completed.returncode:
            raise SystemExit(
                f"{arguments} ended with {completed.returncode}:\n{completed.stdout[-500:]}{completed.stderr[-500:]}"
            )
    return best, best_cpu


def commit(directory: Path) -> None:
    for arguments in (
        ["init", "-q", "-b", "main"],
        ["add", "released"],
        ["mv", "-k", "released", "schemas"],
        ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "-q", "-m", "schemas"],
    ):
        subprocess.run(["git", *arguments], cwd=directory, check=True, capture_output=True)


@contextmanager
def registry(directory: Path) -> Iterator[str]:
    """Starts a registry with the released schemas, and yields its URL."""
    command = [sys.executable, "-m", "headrace", "registry", "serve"]
    command += ["--data-dir", str(directory / "data"), "--registry-listen", "127.0.0.1:0"]
    with (
        (directory / "registry.log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip().partition("=")[2]
            register = [sys.executable, "-m", "headrace", "schema", "register", "released", "--registry-url", url]
            subprocess.run(register, cwd=directory, check=True, capture_output=True)
            yield url
        finally:
            process.terminate()


def phase(name: str, work: Callable[[], Any], count: int) -> Any:
    begin = time.process_time()
    result = work()
    print(f"  {name:<34} {(time.process_time() - begin) * 1000 / count:8.3f} ms per schema")
    return result


def phases() -> None:
    """Measures the phases of a check in one process: each phase is timed for every schema. Garbage collection is
    disabled, as in the command."""
    gc.disable()
    new_texts = [schema_text(number, is_new=True) for number in range(PHASES)]
    old_texts = [schema_text(number, is_new=False) for number in range(PHASES)]
    print(f"inside one process, {len(new_texts[0])} characters a schema:")
    phase("json.loads, for comparison", lambda: [json.loads(text) for text in new_texts], PHASES)
    phase("reading JSON with its positions", lambda: [read_json(text) for text in new_texts], PHASES)
    candidates = phase("parsing", lambda: [parse_schema(text) for text in new_texts], PHASES)
    earlier = [VersionedSchema(1, parse_schema(text)) for text in old_texts]
    pairs = list(zip(candidates, earlier, strict=True))
    for level in (CompatibilityLevel.BACKWARD, CompatibilityLevel.FULL):
        phase(
            f"comparing at {level.value}",
            lambda level=level: [check_level(new, [old], level) for new, old in pairs],  # type: ignore[misc]
            PHASES,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="The compatibility check over many schemas.")
    parser.add_argument("--schemas", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--no-registry", action="store_true", help="omit the rows of the registry")
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{args.schemas} schemas of {FIELDS} fields, {cores} cores, shortest of {args.runs} cold runs")
    with TemporaryDirectory() as name:
        directory = Path(name)
        write_schemas(directory / "released", args.schemas, lambda _: False)
        commit(directory)
        (directory / "schemas").rename(directory / "old")
        (directory / "old").rename(directory / "released")
        changed = write_schemas(directory / "schemas", args.schemas, lambda _: True).name
        partly_changed = write_schemas(directory / "some", args.schemas, lambda number: number % CHANGED_STEP == 0).name
        load = "import json,pathlib; [json.loads(p.read_text()) for p in pathlib.Path('schemas').iterdir()]"
        row("the interpreter alone", [sys.executable, "-c", "pass"], directory, args.runs)
        row("json.loads of every text", [sys.executable, "-c", load], directory, args.runs)
        check = [sys.executable, "-m", "headrace", "compat", "check", "--quiet"]
        row("against itself as a directory", [*check, "released", "--against", "released"], directory, args.runs)
        positions = {"a directory": ["--against", "released"], "git": ["--against", "git:main:schemas"]}
        for label, against in positions.items():
            row(f"all changed, {label}", [*check, changed, *against], directory, args.runs)
            row(f"1 in {CHANGED_STEP} changed, {label}", [*check, partly_changed, *against], directory, args.runs)
        row(
            "all changed, a directory, 1 process",
            [*check, changed, *positions["a directory"], "--jobs", "1"],
            directory,
            args.runs,
        )
        if not args.no_registry:
            with registry(directory) as url:
                row("all changed, a registry", [*check, changed, "--against-registry", url], directory, args.runs)
                row(
                    "1 in 50 changed, a registry",
                    [*check, partly_changed, "--against-registry", url],
                    directory,
                    args.runs,
                )
    phases()


def row(label: str, arguments: list[str], directory: Path, runs: int) -> None:
    elapsed, used = seconds(arguments, directory, runs)
    print(f"  {label:<34} {elapsed:8.2f} s {used:8.2f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
