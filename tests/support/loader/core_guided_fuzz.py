"""Fuzzes the core with libFuzzer, which searches for inputs that reach new code: `core_guided_fuzz.py SECONDS`.

Needs clang with libFuzzer (`clang` and `libclang-rt-dev` on Debian; `$CLANG` overrides the name). Starts with the
corpus and with messages of its histories. Inputs that reach new code are compared with the reference and stored: the
corpus in `tests/golden/core_corpus` becomes the smallest set with the same coverage. Exits with 1 and prints the input
if AddressSanitizer, UndefinedBehaviorSanitizer, an assertion of the target or the comparison fails.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from headrace.avro_codec.core.build import HERE, SOURCES
from support.loader import core_corpus
from support.loader.range_comparison import record_bytes

FLAGS = ("-std=c11", "-g", "-O1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all")
INPUT_BYTES_MAX = 512
SEEDS_PER_HISTORY = 6


def clang() -> str:
    """Returns the path of clang.

    Raises:
        SystemExit: clang is not installed.
    """
    named = [os.environ["CLANG"]] if "CLANG" in os.environ else ["clang", *(f"clang-{n}" for n in range(22, 13, -1))]
    found = next(filter(None, map(shutil.which, named)), None)
    if found is None:
        sys.exit(f"no clang found ({named[0]}): install clang with libFuzzer (Debian: clang, libclang-rt-dev)")
    return found


def build(target: Path) -> None:
    """Builds the fuzz target, a C program that runs the core on inputs of libFuzzer.

    Raises:
        SystemExit: the compiler failed.
    """
    words = [clang(), *FLAGS, f"-I{HERE}", "-o", str(target), str(core_corpus.TARGET), *map(str, SOURCES)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{words[0]} failed: {done.stderr.strip()[:2000]}")


def seeds(worlds: list[core_corpus.World], chance: random.Random) -> list[bytes]:
    """Returns first inputs for the fuzzer: batches and bodies of zeros and small numbers for each history."""
    made = []
    for number, world in enumerate(worlds):
        ids = sorted(world.plan.writer_schemas)
        for at in range(SEEDS_PER_HISTORY):
            body = bytes(chance.choice((0, 0, 0, 2, 2, 4, 65)) for _ in range(chance.randrange(64)))
            head = (number, chance.randrange(32), len(ids) if at % 2 else at, 255)
            if at % 2:
                records = (record_bytes(n, n, None, one.to_bytes(5, "big") + body) for n, one in enumerate(ids))
                made.append(bytes((head[0], head[1] & ~core_corpus.IS_BODY, *head[2:])) + b"".join(records))
            else:
                made.append(bytes((head[0], head[1] | core_corpus.IS_BODY, *head[2:])) + body)
    return made


def main(seconds: int) -> int:
    """Returns 0 without a finding, else 1."""
    worlds = core_corpus.worlds()
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        build(here / "target")
        core_corpus.write_programs(here / "programs", worlds)
        found, least = here / "found", here / "least"
        for path in (found, least):
            path.mkdir()
        for at, data in enumerate(core_corpus.inputs() + seeds(worlds, random.Random(1))):
            (found / f"seed-{at}").write_bytes(data)
        environment = {**os.environ, "HEADRACE_FUZZ_PROGRAMS": str(here / "programs")}
        command = [str(here / "target"), f"-max_len={INPUT_BYTES_MAX}", "-print_final_stats=1"]
        fuzz = [*command, f"-max_total_time={seconds}", "-use_value_profile=1", f"-artifact_prefix={here}/", str(found)]
        if subprocess.run(fuzz, env=environment, check=False).returncode:
            for artifact in sorted(here.glob("*-*")):
                print(f"finding: {artifact.name.partition('-')[0]}: {artifact.read_bytes().hex()}")
            return 1
        merge = subprocess.run(
            [*command, "-merge=1", str(least), str(found)], env=environment, check=True, capture_output=True, text=True
        )
        corpus = [path.read_bytes() for path in sorted(least.iterdir())]
    for data in corpus:
        try:
            core_corpus.check(worlds, data)
        except AssertionError as error:
            print(f"finding: the core and the reference differ: {data.hex()}: {error}")
            return 1
    core_corpus.save_inputs(corpus)
    covered = re.findall(r"cov: (\d+)", merge.stderr)
    print(f"{len(corpus)} inputs stored, {covered[-1] if covered else 'unknown'} code edges covered, no finding")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        sys.exit(__doc__)
    sys.exit(main(int(sys.argv[1])))
