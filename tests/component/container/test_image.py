"""The Dockerfile's image: built and run by an engine of this machine, or its steps run plainly where there is none.

An engine is one that answers: docker with its daemon, podman or buildah. It finds the base image as it always does; a
builder without a daemon needs no more than its own settings, such as `BUILDAH_ISOLATION=chroot`.
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
PRODUCED = """
from headrace import Producer
schema = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
with Producer(app="shop") as producer:
    for number in range(3):
        producer.send("orders", {"id": number}, schema=schema)
"""
QUERY = "SELECT count(*) AS n, sum(id) AS s FROM orders"
PIPELINE = f"""
echo "user=$(id -u) directory=$PWD"
headrace up --registry-listen 127.0.0.1:0 --broker-listen 127.0.0.1:0 --hive-listen 127.0.0.1:0 > up.out 2> up.err &
up=$!
until grep -q ^ready up.out; do kill -0 $up || {{ cat up.err >&2; exit 1; }}; sleep 0.2; done
python -c {shlex.quote(PRODUCED)} && headrace load >&2 && headrace sql --format csv "{QUERY}"
kill $up; wait $up; echo "up=$?"
"""
"""What is run in the image: everything at once, and rows from a producer to an answer."""

Run = Callable[[str], str]
"""A shell's standard output, in the image with its environment, user and directory."""


def engine() -> str:
    """The container engine that works here; "" for none."""
    ready = {"docker": ["version"], "podman": ["version"], "buildah": ["info"]}
    for name, arguments in ready.items():
        if shutil.which(name) and subprocess.run([name, *arguments], capture_output=True, check=False).returncode == 0:
            return name
    return ""


@pytest.fixture(scope="module")
def in_image() -> Iterator[Run]:
    name = engine()
    print(f"\nthe image is built {'by ' + name if name else 'of its steps, plainly: there is no container engine'}")
    yield from built_by(name) if name else built_plainly()


@pytest.mark.timeout(BUILD_S + RUN_S)
def test_the_image_runs_a_pipeline_as_a_user_of_no_rights(in_image: Run) -> None:
    first, *others = in_image(PIPELINE).splitlines()
    assert others == ["n,s", "3,3", "up=0"]
    said = dict(word.split("=") for word in first.split())
    if engine():
        assert said == {"user": "10001", "directory": "/var/lib/headrace"}


def told(command: list[str], timeout_s: int = RUN_S, **how: object) -> str:
    """What a command prints; its errors, where it fails."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, **how)  # type: ignore[call-overload]
    assert ended.returncode == 0, f"{shlex.join(command)}\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
    return str(ended.stdout)


def built_by(name: str) -> Iterator[Run]:
    told([name, "build", "--tag", TAG, str(ROOT)], BUILD_S)
    try:
        if name != "buildah":
            yield lambda script: told([name, "run", "--rm", "--entrypoint", "sh", TAG, "-c", script])
            return
        container = told([name, "from", "--pull-never", TAG]).strip()
        try:
            yield lambda script: told([name, "run", container, "--", "sh", "-c", script])
        finally:
            told([name, "rm", container])
    finally:
        told([name, "rmi", TAG])


def built_plainly() -> Iterator[Run]:
    """By this machine's Python, with the image's directories below one of its own; there is no other user to become."""
    with tempfile.TemporaryDirectory(prefix="headrace-image-") as root:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).resolve().parent}:{os.environ['PATH']}"}
        directory = Path(root)
        lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
        for step, _, text in (line.partition(" ") for line in lines if line and not line.startswith("#")):
            if step == "WORKDIR":
                directory = below(root, text)
                directory.mkdir(parents=True, exist_ok=True)
            elif step == "COPY" and not text.startswith("--from"):  # the other one is in its place already
                copy_checkout(directory)
            elif step == "RUN" and not text.startswith("useradd"):
                told(["sh", "-c", rooted(text, root)], BUILD_S, cwd=directory, env=environment)
            elif step == "ENV":
                words = (word.partition("=") for word in shlex.split(rooted(text, root)))
                environment |= {key: value.replace("$PATH", os.environ["PATH"]) for key, _, value in words}
        yield lambda script: told(["sh", "-c", script], cwd=directory, env=environment)


def below(root: str, path: str) -> Path:
    return Path(root) / path.lstrip("/")


def rooted(text: str, root: str) -> str:
    """A step's text with the image's own directories below another root."""
    return re.sub(r"(?<![\w/])/(?=opt/|var/)", f"{root}/", text)


def copy_checkout(to: Path) -> None:
    """What of this checkout git knows, which is what an image should need."""
    for name in told(["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]).split(
        "\0"
    ):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
