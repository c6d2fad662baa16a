"""Builds with the pip package ziglang on machines without a C compiler: wheels for both processors, and set-up."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from build_wheels import PROCESSORS
from headrace.audit.count import message_hash
from headrace.avro_codec.core import library
from headrace.avro_codec.core.build import LIBRARY
from support.checkout import ROOT

pytestmark = [pytest.mark.zig, pytest.mark.timeout(1800)]

ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
"""Values of `e_machine` in the ELF header, two bytes at offset 18."""

GLIBC_MAX = (2, 17)

USE = """
from headrace.avro_schema import parse_schema
from headrace.avro_codec import BadBody, build, compile_check, core_library
core = core_library()
print(build())
print(core.message_hash(b"key", 3, b"value", 5))
check = compile_check(parse_schema('{"type": "array", "items": ["null", "string"]}'), core)
check(b"\\x04\\x00\\x02\\x02x\\x00")
try:
    check(b"\\x04\\x00\\x03\\x02x\\x00")
except BadBody as error:
    print(error)
"""
USED = (
    f"core {library.ABI}.{library.PROGRAM_VERSION}\n{message_hash(b'key', b'value')}\n"
    "the union index -2 is out of range: the union has 2 branches\n"
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a checkout without build results."""
    ignored = (".*", "build", "dist", "*.egg-info", "headrace-data", "__pycache__", "tests", "docs", f"{LIBRARY}*")
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("zig") / "headrace", ignore=shutil.ignore_patterns(*ignored))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Returns an environment whose PATH is an empty directory, without a compiler."""
    empty = tmp_path / "empty"
    empty.mkdir()
    variables = {name: value for name, value in os.environ.items() if name not in ("CC", "PYTHONPATH")}
    return {**variables, "PATH": str(empty)}


def required_glibc(compiled: bytes) -> tuple[int, int]:
    """Returns the newest glibc version of the library's imported symbols."""
    return max((int(major), int(minor)) for major, minor in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", compiled))


def test_wheels_for_both_processors_contain_core(checkout: Path, environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, str(checkout / "tools" / "build_wheels.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wheels: dict[str, Path] = {}
    for line in done.stdout.splitlines():
        tagged = re.search(r"-py3-none-manylinux_2_17_(\w+)\.manylinux2014_\1\.whl$", line)
        assert tagged is not None, line
        wheels[tagged[1]] = checkout / line
    assert set(wheels) == set(PROCESSORS) == set(ELF_MACHINES)
    for processor, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as archive:
            compiled = archive.read(f"headrace/avro_codec/core/{LIBRARY}")
        assert int.from_bytes(compiled[18:20], "little") == ELF_MACHINES[processor]
        assert required_glibc(compiled) <= GLIBC_MAX

    if platform.machine() not in wheels:
        pytest.skip(f"the wheels were built, but none for {platform.machine()}")
    fresh = tmp_path / "fresh"
    subprocess.run([sys.executable, "-m", "venv", str(fresh)], check=True)
    python = str(fresh / "bin" / "python")
    install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    subprocess.run([*install, str(wheels[platform.machine()])], check=True, env=environment)
    used = subprocess.run(
        [python, "-c", USE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (used.returncode, used.stdout) == (0, USED), used.stderr


@pytest.mark.parametrize("has_compiler", [False, True], ids=["no compiler", "a compiler that fails"])
def test_set_up_without_working_compiler_builds_core(
    checkout: Path, environment: dict[str, str], has_compiler: bool
) -> None:
    if has_compiler:
        broken = Path(environment["PATH"]) / "cc"
        broken.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
        broken.chmod(0o755)
    core = checkout / "avro_codec" / "core"
    for stale in core.glob(f"{LIBRARY}*"):
        stale.unlink()
    python = checkout / ".venv" / "bin" / "python"
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", str(checkout / ".venv")], check=True)
    subprocess.run([str(python), "-m", "pip", "--quiet", "uninstall", "--yes", "ziglang"], check=True)
    set_up = "import setup_environment as it; it.LOG.parent.mkdir(exist_ok=True); it.link_packages(); it.build_core()"
    tools = {**environment, "PYTHONPATH": str(checkout / "tools")}
    done = subprocess.run([sys.executable, "-c", set_up], env=tools, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("set-up: no working C compiler on this machine: installing ziglang to compile the core\n")
    assert (core / LIBRARY).is_file()
    built_at = (core / LIBRARY).stat().st_mtime_ns
    packages = {**environment, "PYTHONPATH": str(checkout / ".make" / "packages")}
    used = subprocess.run([str(python), "-P", "-c", USE], env=packages, capture_output=True, text=True, check=False)
    assert (used.returncode, used.stdout) == (0, USED), used.stderr
    second = subprocess.run([sys.executable, "-c", set_up], env=tools, capture_output=True, text=True, check=False)
    assert (second.returncode, second.stdout) == (0, "")
    assert (core / LIBRARY).stat().st_mtime_ns == built_at
