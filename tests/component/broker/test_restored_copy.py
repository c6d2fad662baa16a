"""A load from a broker whose data directory was restored from a copy older than the last load."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.loader.loads_in_process import Loads, check_resumed_at_divergence
from support.running_service import Service, StartService

pytestmark = pytest.mark.servers


def serve(start_service: StartService, data_dir: Path) -> Service:
    return start_service("headrace", "broker", "serve", "--data-dir", str(data_dir), "--broker-listen", "127.0.0.1:0")


def produced_and_loaded(start_service: StartService, directory: Path, loads: Loads, copy: Path) -> None:
    """Writes 80 messages, copies the directory, writes 20 more, loads all, and stops the broker."""
    broker = serve(start_service, directory)
    address = broker.addresses["broker"]
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(loads.topic, 1)])[loads.topic].result(30)
    loads.produce(address, range(80))
    broker.stop()
    shutil.copytree(directory, copy)
    broker = serve(start_service, directory)
    loads.produce(broker.addresses["broker"], range(80, 100))
    assert not loads.load(broker.addresses["broker"]).has_findings
    broker.stop()


@pytest.mark.parametrize("loads_before", [0, 1])
def test_messages_produced_after_a_restore_are_all_loaded(
    tmp_path: Path, start_service: StartService, loads_before: int
) -> None:
    directory, copy, loads = tmp_path / "data", tmp_path / "copy", Loads(tmp_path, "orders")
    produced_and_loaded(start_service, directory, loads, copy)
    shutil.rmtree(directory)
    copy.rename(directory)
    # A leader epoch is a time in seconds, or the last epoch plus one. The second start may take the next second's
    # epoch, which a start from the copy must not reach: no operator restores a copy within two seconds.
    time.sleep(2)
    address = serve(start_service, directory).addresses["broker"]
    for _ in range(loads_before):
        held = loads.load(address)
        assert re.search(r"\b80\b.*\b99\b", held.problems["orders"][0])
    loads.produce(address, range(1000, 1070))
    check_resumed_at_divergence(loads, address)


def test_a_restart_alone_is_no_divergence(tmp_path: Path, start_service: StartService) -> None:
    directory, loads = tmp_path / "data", Loads(tmp_path, "orders")
    produced_and_loaded(start_service, directory, loads, tmp_path / "copy")
    address = serve(start_service, directory).addresses["broker"]
    report = loads.load(address)
    assert (report.problems, report.notes, report.commit_number) == ({}, (), 0)
    loads.produce(address, range(100, 130))
    report = loads.load(address)
    assert (report.problems, report.notes) == ({}, ())
    assert sorted(row for rows in loads.rows().values() for row in rows) == [(n, n) for n in range(130)]
