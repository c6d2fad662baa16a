"""Builds and runs the image of the Dockerfile with a container engine; without an engine, runs the steps directly.

Docker with its daemon, podman and buildah are supported. They fetch the base image as usual. A builder without a daemon
needs only its own settings, such as `BUILDAH_ISOLATION=chroot`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.checkout import ROOT

pytestmark = pytest.mark.container

TAG = "headrace-test"
BUILD_S = 900  # Spark alone is 490 MB
RUN_S = 300
PRODUCER_CODE = """
from headrace import Producer
schema = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
with Producer(app="shop") as producer:
    for number in range(3):
        producer.send("orders", {"id": number}, schema=schema)
"""
QUERY = "SELECT count(*) AS n, sum(id) AS s FROM orders"
PIPELINE = f"""
echo "user=$(id -u) directory=$PWD"
for part in REGISTRY BROKER HIVE CONSOLE; do export HEADRACE__${{part}}__LISTEN=127.0.0.1:0; done
headrace up > up.out 2> up.err &
up=$!
until grep -q ^ready up.out; do kill -0 $up || {{ cat up.err >&2; exit 1; }}; sleep 0.2; done
python -c {shlex.quote(PRODUCER_CODE)} && headrace load >&2 && headrace sql --format csv "{QUERY}"
kill $up; wait $up; echo "up=$?"
"""
"""A script that runs in the image: all servers, a producer, a load and a query."""

Run = Callable[[str], str]
"""Runs a shell script in the image, with its environment, user and directory, and returns standard output."""


def engine() -> str:
    """Returns the name of a working container engine, or ""."""
    ready = {"docker": ["version"], "podman": ["version"], "buildah": ["info"]}
    for name, arguments in ready.items():
        if shutil.which(name) and subprocess.run([name, *arguments], capture_output=True, check=False).returncode == 0:
            return name
    return ""


@pytest.fixture(scope="module")
def in_image() -> Iterator[Run]:
    name = engine()
    print(
        f"\nbuilding the image with {name}"
        if name
        else "\nno container engine: running the Dockerfile's steps directly"
    )
    yield from build_with_engine(name) if name else run_steps_directly()


@pytest.mark.timeout(BUILD_S + RUN_S)
def test_image_runs_a_pipeline_as_an_unprivileged_user(in_image: Run) -> None:
    first, *others = in_image(PIPELINE).splitlines()
    assert others == ["n,s", "3,3", "up=0"]
    facts = dict(word.split("=") for word in first.split())
    if engine():
        assert facts == {"user": "10001", "directory": "/var/lib/headrace"}


def run_command(command: list[str], timeout_s: int = RUN_S, **options: object) -> str:
    """Returns standard output of a command; fails with its errors."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return str(done.stdout)


def build_with_engine(name: str) -> Iterator[Run]:
    run_command([name, "build", "--tag", TAG, str(ROOT)], BUILD_S)
    try:
        if name != "buildah":
            yield lambda script: run_command([name, "run", "--rm", "--entrypoint", "sh", TAG, "-c", script])
            return
        container = run_command([name, "from", "--pull-never", TAG]).strip()
        try:
            yield lambda script: run_command([name, "run", container, "--", "sh", "-c", script])
        finally:
            run_command([name, "rm", container])
    finally:
        run_command([name, "rmi", TAG])


def run_steps_directly() -> Iterator[Run]:
    """Runs the steps with this machine's Python and user, with the image's directories in a temporary one."""
    with tempfile.TemporaryDirectory(prefix="headrace-image-") as root:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).resolve().parent}:{os.environ['PATH']}"}
        directory = Path(root)
        lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
        for step, _, text in (line.partition(" ") for line in lines if line and not line.startswith("#")):
            if step == "WORKDIR":
                directory = path_in(root, text)
                directory.mkdir(parents=True, exist_ok=True)
            elif step == "COPY" and not text.startswith("--from"):  # the build stage's results are in place here
                copy_checkout(directory)
            elif step == "RUN" and not text.startswith("useradd"):
                run_command(["sh", "-c", with_root(text, root)], BUILD_S, cwd=directory, env=environment)
            elif step == "ENV":
                words = (word.partition("=") for word in shlex.split(with_root(text, root)))
                environment |= {key: value.replace("$PATH", os.environ["PATH"]) for key, _, value in words}
        yield lambda script: run_command(["sh", "-c", script], cwd=directory, env=environment)


def path_in(root: str, path: str) -> Path:
    return Path(root) / path.lstrip("/")


def with_root(text: str, root: str) -> str:
    """Returns the text of a step with the image's directories in another root."""
    return re.sub(r"(?<![\w/])/(?=opt/|var/)", f"{root}/", text)


def copy_checkout(to: Path) -> None:
    """Copies the files of this checkout that git tracks or would track, which must suffice for the image."""
    for name in run_command(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    ).split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
