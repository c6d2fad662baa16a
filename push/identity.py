"""Recognizes a file after renames, remounts and reboots, and distinguishes it from a later file with its inode.

Device numbers change at a remount (NFS) or a reboot, and ext4 gives the inode of a deleted file to the next new one. So
an identity consists of an id of the file system, the inode, and the inode's generation (ioctl FS_IOC_GETVERSION) or
the file's birth time (statx). Where a file system has neither, and on NFS, the checksum of the first line replaces
them.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

try:  # as the module random does: hashlib imports OpenSSL, which takes 4 MB
    from _sha2 import sha256  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        from hashlib import sha256

FS_IOC_GETVERSION = 0x80087601
AT_EMPTY_PATH = 0x1000
STATX_BTIME = 0x800
STATX_BYTES = 256
BIRTH_TIME_AT = 80  # offset in struct statx: seconds (s64), nanoseconds (u32)
FIRST_LINE_BYTES_MAX = 65_536
NETWORK_FILE_SYSTEMS = frozenset(["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "fuse.glusterfs"])


@dataclass(frozen=True)
class FileKey:
    """Identity of a file.

    Attributes:
        file_system: an id that survives a remount, see `file_system_id`.
        generation: of the inode; None if the file system has none.
        birth_ns: birth time in nanoseconds; None if the file system has none.
        first_line_crc: CRC-32 of the first line, only if generation and birth time are None.
    """

    file_system: str
    inode: int
    generation: Optional[int] = None
    birth_ns: Optional[int] = None
    first_line_crc: Optional[int] = None

    def is_same_file(self, other: FileKey) -> bool:
        """Compares the fields that both keys have. A generation or birth time identifies a file even if the id of
        the file system changed, for example after a start in a container without /dev/disk."""
        if self.inode != other.inode:
            return False
        pairs = ((self.generation, other.generation), (self.birth_ns, other.birth_ns))
        known = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
        if known:
            return all(ours == theirs for ours, theirs in known)
        return self.file_system == other.file_system and self.first_line_crc == other.first_line_crc

    def text(self) -> str:
        """Returns the key as a part of a source id."""
        if self.generation is not None:
            detail = f"g{self.generation:x}"
        elif self.birth_ns is not None:
            detail = f"b{self.birth_ns:x}"
        else:
            detail = f"l{self.first_line_crc or 0:08x}"
        return f"{self.file_system}/{self.inode}-{detail}"


@dataclass(frozen=True)
class FileSystem:
    """A mounted file system: its id and whether a network serves it."""

    id: str
    is_network: bool


def host_identity(machine_id: Path = Path("/etc/machine-id")) -> str:
    """Returns an id of this host that survives a change of its name: a hash of the machine id, else the host name."""
    try:
        text = machine_id.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        text = ""
    return _short_hash(f"headrace:{text}") if text else os.uname().nodename[:64]


def _short_hash(text: str) -> str:
    return str(sha256(text.encode()).hexdigest()[:16])


def file_system_of(
    device: int, file_system_number: int, mounts: str, uuids: Callable[[int], Optional[str]]
) -> FileSystem:
    """Returns the id of a file system: the server and path of a network's, else the UUID, else the number that statvfs
    reports, else the device number.

    Args:
        device: st_dev of a file.
        file_system_number: f_fsid of statvfs; 0 if the file system has none.
        mounts: the text of /proc/self/mountinfo.
        uuids: returns the UUID of a block device.
    """
    kind, mounted = _mount_of(device, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        return FileSystem(_short_hash(mounted), True)
    uuid = uuids(device)
    if uuid:
        return FileSystem(uuid, False)
    return FileSystem(f"f{file_system_number:x}" if file_system_number else f"d{device:x}", False)


def _mount_of(device: int, mounts: str) -> tuple[str, str]:
    """Returns the type and the source of the mount of a device."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        words = line.split(" ")
        if len(words) > 2 and words[2] == number and "-" in words:
            at = words.index("-")
            return words[at + 1], words[at + 2]
    return "", ""


def device_uuid(device: int, directory: Path = Path("/dev/disk/by-uuid")) -> Optional[str]:
    """Returns the UUID of a block device, or None if the directory of links does not have it."""
    try:
        for link in sorted(directory.iterdir()):
            if link.stat().st_rdev == device:
                return link.name
    except OSError:
        return None
    return None


class FileIdentifier:
    """Determines the keys of open files. Caches the file systems by device number."""

    def __init__(self) -> None:
        self._file_systems: dict[int, FileSystem] = {}
        self._statx = _statx_function()

    def key(self, descriptor: int) -> Optional[FileKey]:
        """Returns the key of an open file; None if it needs the first line and the file has no complete line yet."""
        status = os.fstat(descriptor)
        system = self._file_system(descriptor, status.st_dev)
        generation = None if system.is_network else self._generation(descriptor)
        birth_ns = None if system.is_network else self._birth_ns(descriptor)
        if generation is not None or birth_ns is not None:
            return FileKey(system.id, status.st_ino, generation, birth_ns)
        crc = first_line_crc(os.pread(descriptor, FIRST_LINE_BYTES_MAX, 0))
        return None if crc is None else FileKey(system.id, status.st_ino, first_line_crc=crc)

    def _file_system(self, descriptor: int, device: int) -> FileSystem:
        found = self._file_systems.get(device)
        if found is None:
            try:
                mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
            except OSError:
                mounts = ""
            found = file_system_of(device, os.fstatvfs(descriptor).f_fsid, mounts, device_uuid)
            self._file_systems[device] = found
        return found

    def _generation(self, descriptor: int) -> Optional[int]:
        buffer = bytearray(8)
        try:
            fcntl.ioctl(descriptor, FS_IOC_GETVERSION, buffer, True)
        except OSError:
            return None
        return int.from_bytes(buffer[:4], sys.byteorder) or None

    def _birth_ns(self, descriptor: int) -> Optional[int]:
        if self._statx is None:
            return None
        buffer = ctypes.create_string_buffer(STATX_BYTES)
        if self._statx(descriptor, b"", AT_EMPTY_PATH, STATX_BTIME, buffer):
            return None
        if not struct.unpack_from("=I", buffer, 0)[0] & STATX_BTIME:
            return None
        seconds, nanoseconds = struct.unpack_from("=qI", buffer, BIRTH_TIME_AT)
        return int(seconds) * 1_000_000_000 + int(nanoseconds)


def first_line_crc(head: bytes) -> Optional[int]:
    """Returns the CRC-32 of the first line, or of `head` if it is full and has no line end; None if the line is not
    complete."""
    end = head.find(b"\n") + 1
    if not end and len(head) < FIRST_LINE_BYTES_MAX:
        return None
    return zlib.crc32(head[:end] if end else head)


def _statx_function() -> Optional[Callable[[int, bytes, int, int, ctypes.Array[ctypes.c_char]], int]]:
    """Returns statx of the C library, or None: glibc has it since 2.28."""
    try:
        function = ctypes.CDLL(None).statx
    except (AttributeError, OSError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p]
    found: Callable[[int, bytes, int, int, ctypes.Array[ctypes.c_char]], int] = function
    return found
