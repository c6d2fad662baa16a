"""Fuzzes the core with mutated batches for a given time: `python tests/support/loader/core_fuzz.py SECONDS [SEED]`.

Builds the core with AddressSanitizer and UndefinedBehaviorSanitizer and restarts itself with their libraries preloaded.
The corpus of `core_corpus` is checked first. Then programs and messages come from generated histories of schemas, which
are replaced at intervals. Each round mutates bytes, runs the core on them, and compares the result with the reference.
A difference ends the run and prints the seed and the bytes that reproduce it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMPILER_FLAGS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
HISTORIES = 40
HISTORIES_S = 120  # after this time new histories are generated
MESSAGES_PER_HISTORY = 12


def main(seconds: float, seed: int) -> int:
    """Builds the core with sanitizers and fuzzes it. Returns the exit code, 0 without a finding."""
    from headrace.avro_codec.core.build import LIBRARY, build, compiler

    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / LIBRARY
        build(library, compiler(), *COMPILER_FLAGS)
        asan = subprocess.run([*compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
        environment = {
            **os.environ,
            "LD_PRELOAD": asan.stdout.strip(),
            "ASAN_OPTIONS": "detect_leaks=0",  # Python itself has leaks
            "PYTHONMALLOC": "malloc",  # else objects would be adjacent, and reads beyond one undetected
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        if not _replays(Path(directory), environment):
            return 1
        command = [sys.executable, __file__, "--under", str(library), str(seconds), str(seed)]
        return subprocess.run(command, env=environment, check=False).returncode


def _replays(directory: Path, environment: dict[str, str]) -> bool:
    """Runs the corpus in a C program that gives the core buffers of exactly the needed size, so that a sanitizer
    reports any access beyond them. Returns whether there was no report."""
    from headrace.avro_codec.core.build import HERE, SOURCES, compiler
    from support.loader import core_corpus

    programs, inputs, target = directory / "programs", directory / "inputs", directory / "replay"
    core_corpus.write_programs(programs, core_corpus.worlds())
    core_corpus.write_inputs(inputs, core_corpus.inputs())
    sources = [str(core_corpus.TARGET), *map(str, SOURCES)]
    subprocess.run(
        [*compiler(), *COMPILER_FLAGS, "-std=c11", "-DHR_REPLAY", f"-I{HERE}", "-o", str(target), *sources], check=True
    )
    found = {key: value for key, value in environment.items() if key != "LD_PRELOAD"}
    found["HEADRACE_FUZZ_PROGRAMS"] = str(programs)
    return subprocess.run([str(target), str(inputs)], env=found, check=False).returncode == 0


def under_sanitizers(path: Path, seconds: float, seed: int) -> None:
    from headrace import avro_codec
    from headrace.avro_codec.core.library import Library

    avro_codec._CORE = Library(path)
    print(f"seed={seed}", flush=True)
    corpus_size = _check_corpus()
    chance = random.Random(seed)
    worlds = _worlds(seed)
    rounds, histories = 0, len(worlds)
    ends = time.monotonic() + seconds
    others = time.monotonic() + HISTORIES_S
    while time.monotonic() < ends:
        if time.monotonic() > others:
            worlds = _worlds(chance.randrange(2**32))
            histories += len(worlds)
            others = time.monotonic() + HISTORIES_S
        world = chance.choice(worlds)
        _bodies(world, chance)
        _batch(world, chance)
        rounds += 1
    print(f"{corpus_size} corpus inputs, {rounds} rounds, {histories} histories, no finding")


def _check_corpus() -> int:
    """Compares core and reference for all inputs of the corpus, and returns the number of inputs."""
    from support.loader import core_corpus

    worlds = core_corpus.worlds()
    for data in (found := core_corpus.inputs()):
        core_corpus.check(worlds, data)
    return len(found)


def _worlds(seed: int) -> list[list[tuple[object, object, bytes]]]:
    """Generates histories of schemas. Returns for each history a list of messages, each with a converter that compares
    core and reference, and the plan of its topic."""
    import hypothesis
    from hypothesis import strategies as st

    from headrace.avro_codec import CapturedTime
    from headrace.avro_schema import parse_schema
    from headrace.loader.work_unit import TopicPlan
    from support.loader.loader_samples import POLICY
    from support.loader.projection_oracle import core_and_reference, encode, states_of
    from support.schemas.strategies import data_for, histories

    found: list[list[tuple[object, object, bytes]]] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=HISTORIES, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(histories(), st.data())
    def collect(versions: list[object], data: st.DataObject) -> None:
        state = states_of(*versions)[-1]
        texts = {number: version.text for number, version in enumerate(versions, 1)}
        plan = TopicPlan("t", state.text, texts, POLICY, routes=state.routes)
        messages = []
        for at in range(MESSAGES_PER_HISTORY):
            number = 1 + at % len(versions)
            writer = versions[number - 1]
            convert = core_and_reference(writer, parse_schema(state.text), (), CapturedTime(), state.routes[number])
            body = encode(writer, data.draw(data_for(writer)))
            messages.append((convert, plan, number.to_bytes(5, "big") + body))
        found.append(messages)

    collect()
    return [*(one for one in found if one), _messages_with_time_texts()]


def _messages_with_time_texts() -> list[tuple[object, object, bytes]]:
    """Returns messages like `_worlds`, whose time field is text."""
    from headrace.avro_codec import CapturedTime
    from headrace.avro_schema import find_time_fields, parse_schema
    from headrace.loader.work_unit import TopicPlan
    from support.loader.loader_samples import POLICY
    from support.loader.projection_oracle import core_and_reference, encode, states_of

    text = '{"type": "record", "name": "R", "fields": [{"name": "timestamp", "type": ["null", "string", "long"]}]}'
    schema = parse_schema(text)
    (state,) = states_of(schema)
    plan = TopicPlan("t", state.text, {1: text}, POLICY, routes=state.routes)
    time_fields = find_time_fields(schema, "", POLICY.time_fields)
    convert = core_and_reference(schema, parse_schema(state.text), time_fields, CapturedTime(), state.routes[1])
    times = [
        "2013-01-01T01:30Z",
        "2013-01-01 01:30:00.123456789+02:00",
        "2024-02-29T00:00:00,5-0130",
        "2013-01-01",
        "",
        7,
    ]
    bodies = [encode(schema, {"timestamp": time}) for time in times]
    return [(convert, plan, (1).to_bytes(5, "big") + body) for body in bodies * 2]


def _bodies(world: list[tuple[object, object, bytes]], chance: random.Random) -> None:
    from headrace.avro_codec import BadBody

    for convert, _, value in chance.sample(world, 4):
        body = mutated(value[5:], chance)
        try:
            convert(body)
        except BadBody:
            continue


def _batch(world: list[tuple[object, object, bytes]], chance: random.Random) -> None:
    """Makes a batch of a history's messages, of which some are mutated, and compares core and reference on it. Then
    mutates the payload of the batch and compares them again."""
    from headrace.avro_codec import core_library
    from headrace.kafka_wire.record_batch import parse_records
    from headrace.loader.project.batches import Columns, RecordColumns
    from support.loader.range_comparison import RangeInputs, check_same, record_bytes

    values = [value if chance.random() < 0.5 else mutated(value, chance) for _, _, value in world]
    records = [record_bytes(at, at, chance.choice((None, b"k")), value) for at, value in enumerate(values)]
    shared = RangeInputs(world[0][1], kafka_column=chance.choice(("none", "position", "full")))
    check_same(shared, [records])
    payload, core = mutated(b"".join(records), chance), core_library()
    assert core is not None
    try:
        expected = list(parse_records(payload, len(records), 7, 0, None))
    except (ValueError, IndexError):
        expected = None
    try:
        found = RecordColumns(core)(payload, len(records), 7, 0, None)
    except (ValueError, IndexError):
        assert expected is None, payload.hex()
    else:
        assert list(found) == expected, payload.hex()
        if isinstance(found, Columns):
            check_same(shared, [[payload]], [len(records)])


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Returns the data with a few bytes changed, removed, inserted or moved."""
    out = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(5):
            case 0:
                out[at : at + 1] = bytes((chance.choice((0, 1, 2, 127, 128, 129, 254, 255)),))
            case 1:
                out[at : at + 1] = bytes((chance.randrange(256),))
            case 2:
                del out[at : at + chance.randrange(1, 4)]
            case 3:
                out[at:at] = chance.randbytes(chance.randrange(1, 11))
            case _:
                start = chance.randrange(len(out) + 1)
                out[at:at] = out[start : start + chance.randrange(1, 20)]
    return bytes(out)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--under"]:
        under_sanitizers(Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
    elif len(sys.argv) in (2, 3):
        sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else time.time_ns() % 10**9))
    else:
        sys.exit(__doc__)
