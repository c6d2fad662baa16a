"""The client as a process, killed at any moment while a writer writes and rotates: each line arrives once, in order."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from support.log_writer import LogWriter, Rotation
from support.push_client import ClientProcess, config_table, eventually
from support.session_gateway import Failure, SessionGateway, session_gateway

ROUNDS = int(os.environ.get("HEADRACE_TEST_ROUNDS", "1"))
KILLS = 12


def numbers(gateway: SessionGateway) -> list[list[int]]:
    """The numbers of the lines, by source."""
    with gateway.lock:
        return [[int(value.split()[1]) for _, value, _ in source.records] for source in gateway.sources.values()]


def missing(gateway: SessionGateway, writers: list[LogWriter]) -> list[tuple[str, int]]:
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
@pytest.mark.parametrize("rotation", [Rotation.COMPRESS, Rotation.COPY], ids=["rename", "copytruncate"])
def test_each_line_arrives_once_through_kills_and_rotations(
    tmp_path: Path, round_number: int, rotation: Rotation
) -> None:
    seed = random.randrange(1 << 30)
    choose = random.Random(seed)
    (tmp_path / "logs").mkdir()
    with session_gateway() as gateway:
        table = config_table(gateway.url, tmp_path, chunk_bytes=4096)
        writers = [LogWriter(tmp_path / "logs" / f"app{at}.log", choose, rotation) for at in range(2)]
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
                gateway.lose(choose.randrange(20)) if rotation is not Rotation.COPY else gateway.forget_sessions()
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
