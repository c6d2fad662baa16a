"""The rules of the push client, as tables."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.push.identity import (
    FileIdentifier,
    FileKey,
    FileSystem,
    device_uuid,
    file_system_of,
    first_line_crc,
    host_identity,
)
from headrace.push.rules import (
    Answer,
    CopyCandidate,
    FileAction,
    Resume,
    SeenFile,
    decide_file,
    decide_resume,
    is_rotated_name,
    may_be_copy,
    original_names,
    position_after_open,
    read_answer,
    retry_delay_s,
    unrotated_name,
)
from headrace.push.source import TailState, without_forgotten


@pytest.mark.parametrize(
    ("seen", "action"),
    [
        (SeenFile(0), FileAction.WAIT),
        (SeenFile(10), FileAction.BEGIN),
        (SeenFile(10, known=True, known_position=10), FileAction.CONTINUE),
        (SeenFile(10, known=True, known_position=4), FileAction.CONTINUE),
        (SeenFile(9, known=True, known_position=10), FileAction.RESTART),
        (SeenFile(0, known=True, known_position=1), FileAction.RESTART),
        (SeenFile(10, known=True, known_position=4, is_unchanged=False), FileAction.RESTART),
        (SeenFile(5, is_compressed=True, known=True, known_position=10), FileAction.CONTINUE),
        (SeenFile(10, copied=10, copied_is_read=True), FileAction.WAIT),
        (SeenFile(10, copied=10), FileAction.ADOPT),
        (SeenFile(10, copied=0), FileAction.ADOPT),
    ],
)
def test_what_to_do_with_a_file(seen: SeenFile, action: FileAction) -> None:
    assert decide_file(seen) is action


@pytest.mark.parametrize(
    ("last_seqno", "last_known", "position", "expected"),
    [
        (0, 0, 0, 0),
        (100, 100, 100, 100),
        (200, 100, 100, 200),  # the client was killed before it noted a confirmation
        (60, 100, 100, 60),  # the gateway lost lines
        (100, 100, 130, 130),  # NUL bytes or rejected lines follow the last stored one
        (60, 100, 130, 60),
        (120, 100, 130, 130),
    ],
)
def test_position_after_a_session_opened(last_seqno: int, last_known: int, position: int, expected: int) -> None:
    assert position_after_open(last_seqno, last_known, position) == expected


@pytest.mark.parametrize(
    ("position", "first_begin", "size", "expected"),
    [
        (50, None, 100, Resume.SEEK),
        (50, 50, 100, Resume.SEND),
        (70, 50, 100, Resume.SEND),
        (40, 50, 100, Resume.SEEK),
        (101, None, 100, Resume.RESTART),
        (100, None, 100, Resume.SEEK),
        (40, 50, None, Resume.LOST),
        (50, 50, None, Resume.SEND),
        (50, None, None, Resume.SEND),
    ],
)
def test_how_a_source_goes_on(position: int, first_begin: int | None, size: int | None, expected: Resume) -> None:
    assert decide_resume(position, first_begin, size) is expected


@pytest.mark.parametrize(
    ("status", "error_code", "expected"),
    [
        (200, 0, Answer.STORED),
        (307, 0, Answer.MOVED),
        (400, 40000, Answer.RETRY),
        (401, 40101, Answer.CONFIGURE),
        (403, 40301, Answer.CONFIGURE),
        (404, 40401, Answer.CONFIGURE),
        (404, 40470, Answer.REOPEN),
        (409, 40970, Answer.FENCED),
        (413, 41300, Answer.SMALLER),
        (415, 41500, Answer.CONFIGURE),
        (422, 42200, Answer.CONFIGURE),
        (429, 42900, Answer.RETRY),
        (500, 0, Answer.RETRY),
        (502, 0, Answer.RETRY),
        (503, 50300, Answer.RETRY),
        (507, 0, Answer.RETRY),
        (412, 41270, Answer.OUTDATED),
        (412, 0, Answer.CONFIGURE),
    ],
)
def test_what_a_response_means(status: int, error_code: int, expected: Answer) -> None:
    assert read_answer(status, error_code) is expected


def test_delay_doubles_to_a_maximum_and_half_of_it_is_random() -> None:
    assert [retry_delay_s(failures, 1, 30, None, 0.0) for failures in (1, 2, 3, 6, 1000)] == [0.5, 1, 2, 15, 15]
    assert retry_delay_s(6, 1, 30, None, 0.999) == pytest.approx(30, rel=0.01)


def test_delay_is_not_below_retry_after() -> None:
    assert retry_delay_s(1, 1, 30, 60, 0.0) == 60
    assert retry_delay_s(1, 1, 30, 60, 0.9) > 60


@pytest.mark.parametrize(
    ("name", "original", "expected"),
    [
        ("app.log.1", "app.log", True),
        ("app.log.12.gz", "app.log", True),
        ("app.log-20260131", "app.log", True),
        ("app.log-20260131-1769817600.gz", "app.log", True),
        ("app-20260131.log", "app.log", True),
        ("app.log.old", "app.log", True),
        ("app.log.gz", "app.log", True),
        ("syslog.1", "syslog", True),
        ("app2.log", "app.log", False),
        ("app-error.log", "app.log", False),
        ("application.log", "app.log", False),
        ("app.log.bz2", "app.log", False),
        ("xapp.log.1", "app.log", False),
        ("appxlog.1", "app.log", False),
    ],
)
def test_names_of_rotated_files(name: str, original: str, expected: bool) -> None:
    assert is_rotated_name(name, original) is expected


SUFFIX = r"[-._][0-9][-0-9._T]*"


@given(
    st.text("ab.-_1T", max_size=7),
    st.text("ab.-_1T", max_size=12),
    st.sampled_from(["", ".old", ".bak", ".gz", ".1.gz"]),
)
def test_original_names_are_all_that_logrotate_may_have_renamed(original: str, rest: str, end: str) -> None:
    """A file gets a suffix after its name, or with the option `extension` between stem and extension."""
    name = original + rest + end
    plain = name.removesuffix(".gz")
    for one in {original, original + rest, f"{original}.{rest.rpartition('.')[2]}", name, plain} - {""}:
        stem, dot, extension = one.rpartition(".")
        patterns = [rf"{re.escape(one)}(?:{SUFFIX}|\.old|\.bak)?"]
        if dot and stem:
            patterns.append(rf"{re.escape(stem)}{SUFFIX}\.{re.escape(extension)}")
        expected = any(re.fullmatch(pattern, plain) for pattern in patterns)
        assert (one in original_names(name)) is expected, one


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("app.log", "app.log"),
        ("app.log.1", "app.log"),
        ("app.log.2.gz", "app.log"),
        ("app.log.gz", "app.log"),
        ("app.log-20260131.gz", "app.log"),
        ("app-20260131.log.gz", "app.log"),
        ("app.log.old", "app.log"),
        ("syslog.7.gz", "syslog"),
        ("app0.log", "app0.log"),
        ("20260131", "20260131"),
    ],
)
def test_name_before_the_rotation(name: str, expected: str) -> None:
    assert unrotated_name(name) == expected


A = CopyCandidate("app.log", mtime_s=100)
ACTIVE = CopyCandidate("app.log", mtime_s=100, file_is_present=True)
TRUNCATED = CopyCandidate("app.log", mtime_s=100, was_truncated=True)


@pytest.mark.parametrize(
    ("name", "mtime_s", "candidate", "expected"),
    [
        ("app.log.1", 100, TRUNCATED, True),
        ("app.log.1", 100, ACTIVE, True),  # copytruncate copies before it truncates
        ("app.log.1", 100, A, False),  # a renamed file is recognized by its identity
        ("app.log.1", 100, CopyCandidate("app.log", 100, file_is_present=True, is_renamed=True), False),
        ("app.log.1", 100, CopyCandidate("app.log", 100, was_truncated=True, has_copy=True), False),
        ("app.log.1", 100, CopyCandidate("app.log", 100, was_truncated=True, is_older=False), False),
        ("other.log.1", 100, TRUNCATED, False),
        ("app.log", 100, TRUNCATED, False),
        ("app.log.1.gz", 100, A, True),
        ("app.log.1.gz", 101, A, True),
        ("app.log.1.gz", 99, A, False),
        ("app.log.1.gz", 99, TRUNCATED, True),
        ("app.log.2.gz", 100, CopyCandidate("app.log.1", 100), True),
        ("other.log.2.gz", 100, CopyCandidate("app.log.1", 100), False),
    ],
)
def test_which_file_may_be_a_copy(name: str, mtime_s: int, candidate: CopyCandidate, expected: bool) -> None:
    assert may_be_copy(name, mtime_s, candidate) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (FileKey("f", 1, 7, 100), FileKey("f", 1, 7, 100), True),
        (FileKey("f", 1, 7, 100), FileKey("f", 1, 8, 100), False),
        (FileKey("f", 1, 7, 100), FileKey("f", 1, 7, 200), False),
        (FileKey("f", 1, 7, 100), FileKey("f", 2, 7, 100), False),
        (FileKey("f", 1, 7, 100), FileKey("remounted", 1, 7, 100), True),
        (FileKey("f", 1, None, 100), FileKey("remounted", 1, None, 100), True),
        (FileKey("f", 1, 7, None), FileKey("f", 1, 7, 100), True),
        (FileKey("f", 1, None, None, 5), FileKey("f", 1, None, None, 5), True),
        (FileKey("f", 1, None, None, 5), FileKey("g", 1, None, None, 5), False),
        (FileKey("f", 1, None, None, 5), FileKey("f", 1, None, None, 6), False),
        (FileKey("f", 1, None, None, 5), FileKey("f", 1, 7, None), False),
    ],
)
def test_which_keys_are_the_same_file(one: FileKey, other: FileKey, expected: bool) -> None:
    assert one.is_same_file(other) is expected
    assert other.is_same_file(one) is expected


MOUNTS = """\
25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 25 0:50 / /mnt/logs rw shared:2 - nfs4 server:/export/logs rw,vers=4.2
"""
NFS_AFTER_REMOUNT = MOUNTS.replace("0:50", "0:61")


def test_network_file_system_keeps_its_id_at_a_remount() -> None:
    before = file_system_of(os.makedev(0, 50), 0, MOUNTS, lambda device: None)
    after = file_system_of(os.makedev(0, 61), 0, NFS_AFTER_REMOUNT, lambda device: None)
    assert before == after
    assert before.is_network
    other = file_system_of(os.makedev(0, 50), 0, MOUNTS.replace("/export/logs", "/export/other"), lambda device: None)
    assert other.id != before.id


def test_file_system_id_is_the_uuid_then_the_number_then_the_device() -> None:
    device = os.makedev(8, 1)
    assert file_system_of(device, 0x12, MOUNTS, lambda _: "uuid-1") == FileSystem("uuid-1", False)
    assert file_system_of(device, 0x12, MOUNTS, lambda _: None).id == "f12"
    assert file_system_of(device, 0, MOUNTS, lambda _: None).id == f"d{device:x}"
    assert not file_system_of(device, 0, MOUNTS, lambda _: None).is_network


def test_identity_by_the_first_line_waits_for_the_line_end() -> None:
    assert first_line_crc(b"half") is None
    assert first_line_crc(b"line\nmore") == first_line_crc(b"line\nother")
    assert first_line_crc(b"x" * 65_536) is not None


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (FileKey("f", 10, 0x1F, 100), "f/10-g1f"),
        (FileKey("f", 10, None, 0x64), "f/10-b64"),
        (FileKey("f", 10, None, None, 0xA5), "f/10-l000000a5"),
    ],
)
def test_source_ids_of_files_stay_as_they_are(key: FileKey, text: str) -> None:
    """The gateway would store all lines again under another id."""
    assert key.text() == text


def test_host_id_is_a_hash_of_the_machine_id_or_the_host_name(tmp_path: Path) -> None:
    machine_id = tmp_path / "machine-id"
    assert host_identity(machine_id) == os.uname().nodename[:64]
    machine_id.write_text("\n", encoding="ascii")
    assert host_identity(machine_id) == os.uname().nodename[:64]
    machine_id.write_text("0123456789abcdef0123456789abcdef\n", encoding="ascii")
    assert host_identity(machine_id) == "99981fe5b4975990"


def test_uuid_of_a_block_device_is_the_name_of_its_link(tmp_path: Path) -> None:
    (tmp_path / "uuid-0").symlink_to("/dev/zero")
    (tmp_path / "uuid-1").symlink_to("/dev/null")
    assert device_uuid(Path("/dev/null").stat().st_rdev, tmp_path) == "uuid-1"
    assert device_uuid(os.makedev(250, 250), tmp_path) is None
    assert device_uuid(os.makedev(250, 250), tmp_path / "missing") is None


@pytest.mark.parametrize("is_network", [False, True])
def test_key_has_the_checksum_of_the_first_line_only_if_nothing_better_is_known(
    tmp_path: Path, is_network: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"half")
    identifier = FileIdentifier()
    identifier._file_systems[path.stat().st_dev] = FileSystem("id", is_network)
    if not is_network:
        identifier._statx = None
        identifier._generation = lambda descriptor: None  # type: ignore[method-assign]
    with path.open("rb+") as file:
        assert identifier.key(file.fileno()) is None
        file.write(b"line\nmore")
        file.flush()
        expected = FileKey("id", path.stat().st_ino, first_line_crc=zlib.crc32(b"line\n"))
        assert identifier.key(file.fileno()) == expected


@pytest.mark.parametrize("generation", [7, None])
def test_key_has_generation_and_birth_time_as_far_as_the_file_system_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generation: int | None
) -> None:
    def ioctl(descriptor: int, request: int, buffer: bytearray, mutates: bool) -> None:
        assert (request, mutates) == (0x80087601, True)
        buffer[:] = (generation or 0).to_bytes(4, sys.byteorder) + b"rest"

    path = tmp_path / "file"
    path.write_bytes(b"line\n")
    born = subprocess.run(["stat", "--format=%.9W", path], capture_output=True, text=True, check=True).stdout
    birth_ns = int(born.replace(".", "")) or None  # stat prints 0 if it is unknown
    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    with path.open("rb") as file:
        key = FileIdentifier().key(file.fileno())
    assert key is not None and (key.generation, key.birth_ns) == (generation, birth_ns)
    assert key.first_line_crc is None or (generation, birth_ns) == (None, None)


def test_positions_of_disappeared_files_are_forgotten() -> None:
    there = TailState("a", 1, "/a", "a")
    gone = [TailState(f"g{at}", 1, "/g", "g", gone_at_s=float(at)) for at in range(3000)]
    kept = without_forgotten([there, *gone], 2500.0, 2000.0)
    assert there in kept
    assert gone[500] not in kept  # too long ago
    assert len(kept) == 2001
    assert gone[-1] in kept
