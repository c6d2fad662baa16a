"""The client as a process, killed at any moment while a writer writes and rotates: each line arrives once, in order."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from support.push_client import ClientProcess, config_table, eventually
from support.session_gateway import Failure, SessionGateway, session_gateway

ROUNDS = int(os.environ.get("HEADRACE_TEST_ROUNDS", "1"))
KILLS = 12


class Writer:
    """Writes numbered lines to one file, and rotates it as logrotate does."""

    def __init__(self, path: Path, choose: random.Random, copies: bool) -> None:
        self.path = path
        self.choose = choose
        self.copies = copies
        self.written = 0
        self.half = ""

    def step(self) -> None:
        what = self.choose.random()
        if what < 0.75:
            self.write(self.choose.choice((1, 3, 50, 2000)))
        elif what < 0.85:
            self.half = f"{self.path.name} {self.written} "
            self.append(self.half)
            time.sleep(0.01)
            self.append("x" * self.choose.randrange(3000) + "\n")
            self.written += 1
        else:
            self.rotate()

    def append(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)

    def write(self, count: int) -> None:
        lines = [f"{self.path.name} {self.written + at} {'x' * self.choose.randrange(60)}\n" for at in range(count)]
        self.append("".join(lines))
        self.written += count

    def rotate(self) -> None:
        if not self.path.exists() or not self.path.stat().st_size:
            return
        for at in range(99, 0, -1):  # nothing is deleted: the client may not have read it yet
            for suffix in ("", ".gz"):
                older = self.path.with_name(f"{self.path.name}.{at}{suffix}")
                if older.exists():
                    older.rename(self.path.with_name(f"{self.path.name}.{at + 1}{suffix}"))
        first = self.path.with_name(f"{self.path.name}.1")
        if self.copies:
            shutil.copyfile(self.path, first)
            os.truncate(self.path, 0)
            return
        self.path.rename(first)
        second = self.path.with_name(f"{self.path.name}.2")
        if second.exists() and self.choose.random() < 0.5:
            status = second.stat()
            partial = second.with_name(f".{second.name}")
            partial.write_bytes(gzip.compress(second.read_bytes(), 1))
            os.utime(partial, ns=(status.st_atime_ns, status.st_mtime_ns))
            partial.rename(second.with_name(f"{second.name}.gz"))
            second.unlink()


def numbers(gateway: SessionGateway) -> list[list[int]]:
    """The numbers of the lines, by source."""
    with gateway.lock:
        return [[int(value.split()[1]) for _, value, _ in source.records] for source in gateway.sources.values()]


def missing(gateway: SessionGateway, writers: list[Writer]) -> list[tuple[str, int]]:
    """The lines that the gateway does not have."""
    with gateway.lock:
        found = {
            value.split()[0:2][1] + b" " + value.split()[0]
            for source in gateway.sources.values()
            for _, value, _ in source.records
        }
    return [(w.path.name, n) for w in writers for n in range(w.written) if f"{n} {w.path.name}".encode() not in found]


@pytest.mark.fault
@pytest.mark.parametrize("round_number", range(ROUNDS))
@pytest.mark.parametrize("copies", [False, True], ids=["rename", "copytruncate"])
def test_each_line_arrives_once_through_kills_and_rotations(tmp_path: Path, round_number: int, copies: bool) -> None:
    seed = random.randrange(1 << 30)
    choose = random.Random(seed)
    (tmp_path / "logs").mkdir()
    with session_gateway() as gateway:
        table = config_table(gateway.url, tmp_path, chunk_bytes=4096)
        writers = [Writer(tmp_path / "logs" / f"app{at}.log", choose, copies) for at in range(2)]
        for _ in range(KILLS):
            client = ClientProcess(table, tmp_path)
            if choose.random() < 0.5:
                gateway.fail("/v1/sessions/", Failure(0, after=True), Failure(503, headers={"Retry-After": "0.01"}))
            for _ in range(choose.randrange(1, 12)):
                choose.choice(writers).step()
                time.sleep(choose.random() * 0.08)
            client.kill()
            if choose.random() < 0.5:  # while the client is down
                choose.choice(writers).step()
            if choose.random() < 0.2:
                gateway.lose(choose.randrange(20)) if not copies else gateway.forget_sessions()
        client = ClientProcess(table, tmp_path)
        total = sum(writer.written for writer in writers)
        eventually(
            lambda: sum(map(len, numbers(gateway))) >= total,
            lambda: f"seed {seed}: {tmp_path} lacks {missing(gateway, writers)}",
        )
        time.sleep(0.3)
        assert client.stop() in (0, -signal.SIGTERM)  # killed by the signal if it was just starting
        found = numbers(gateway)
        assert not gateway.problems
        assert all(one == sorted(one) for one in found), f"seed {seed}: a source is not in order"
        for writer in writers:
            with gateway.lock:
                name = writer.path.name.encode()
                mine = [
                    int(value.split()[1])
                    for source in gateway.sources.values()
                    for _, value, _ in source.records
                    if value.startswith(name)
                ]
            assert sorted(mine) == list(range(writer.written)), f"seed {seed}: lost or doubled lines"
