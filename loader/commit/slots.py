"""The slots of the log: which holds what, whether it stands alone or in an archive.

    log/000000107.json          the content of one slot, put if absent and never changed
    archive/000000100.jsonl     the contents of `PACK_SLOTS` slots up to that one, each a line, byte for byte

Fifty thousand decisions a year would be as many small files, so packs of older slots become archives. A pack is
put if absent as a whole, and only then do the files of its slots go. A writer that slept since before then finds the
name of its slot free again, and what it puts there counts for nothing. So a slot's file is believed only where, after
it was read or put, there is no archive.
"""

from __future__ import annotations

import logging

from headrace.loader.commit.decision import Decision
from headrace.loader.commit.document import read_document
from headrace.loader.errors import BadDecision, StorageError
from headrace.loader.storage.protocols import SlotStorage

logger = logging.getLogger(__name__)

PACK_SLOTS = 100
LOOSE_SLOTS_MIN = 200  # the newest stay files of their own: followers and late drivers read these
ARCHIVE_BYTES_MAX = 64 * 1024 * 1024  # a pack of larger decisions stays as it is: its files are few for their size
PUT_ATTEMPTS_MAX = 3  # on one slot, when the storage refuses the put and then shows no file there
LOG_FOLDER = "log"


def slot_path(slot: int) -> str:
    return f"{LOG_FOLDER}/{slot:09d}.json"


def archive_path(slot: int) -> str:
    """Of the pack that the slot belongs to; named by the pack's last slot."""
    return f"archive/{_pack_end(slot):09d}.jsonl"


def _pack_end(slot: int) -> int:
    return -(-slot // PACK_SLOTS) * PACK_SLOTS


class Slots:
    def __init__(self, storage: SlotStorage) -> None:
        self._storage = storage
        self._newest_archive: tuple[int, list[bytes]] = (0, [])

    def path(self, slot: int) -> str:
        """Where a slot is, for messages."""
        archived = not self._storage.exists(slot_path(slot)) and self._storage.exists(archive_path(slot))
        return self._storage.describe(archive_path(slot) if archived else slot_path(slot))

    def exists(self, slot: int) -> bool:
        return self._storage.exists(slot_path(slot)) or self._storage.exists(archive_path(slot))

    def read(self, slot: int) -> bytes | None:
        """The content of a slot, None when nothing was decided in it.

        Raises:
            BadDecision: its archive is cut.
        """
        is_known = self._newest_archive[0] == _pack_end(slot)
        content = None if is_known else self._storage.read(slot_path(slot))
        archived = self._archived(slot)
        return content if archived is None else archived

    def keep(self, slot: int) -> None:
        """Makes a slot that was read survive a loss of power; see `SlotStorage.keep`.

        Raises:
            OSError: it cannot be made to.
        """
        for path in (slot_path(slot), archive_path(slot)):
            if self._storage.exists(path):
                self._storage.keep(path)

    def put(self, slot: int, content: bytes) -> bytes:
        """Puts the content if the slot is free, and returns what the slot holds then: this, or a faster writer's. That
        survives a loss of power.

        Raises:
            StorageError: the storage neither takes the content nor shows what refused it.
            OSError: the storage failed, and it is not known whether the content was taken.
        """
        path = slot_path(slot)
        failure: OSError | None = None
        for _ in range(PUT_ATTEMPTS_MAX):
            made = False
            try:
                made = self._storage.put_if_absent(path, content)
                failure = None
            except OSError as error:
                # The file may have been made although the call failed: only the slot itself can tell.
                failure = error
            found = content if made else self._storage.read(path)
            archived = self._archived(slot)
            if archived is not None:
                if made:
                    self._storage.remove(path)
                return archived
            if found is not None:
                if not made:
                    self._storage.keep(path)
                return found
        if failure is not None:
            raise failure
        raise StorageError(f"{self._storage.describe(path)} is refused as taken but cannot be found")

    def pack(self, head: int) -> int:
        """Makes archives of the packs that are wholly older than the newest slots, and removes their slots' files.

        Any number of processes may pack at once, and be killed while they do.

        Returns:
            How many files were removed.
        """
        removed = 0
        loose = {int(name[:9]) for name in self._storage.children(LOG_FOLDER) if name[:9].isdecimal()}
        for end in sorted({_pack_end(slot) for slot in loose}):
            if end <= head - LOOSE_SLOTS_MIN:
                removed += self._pack(end, loose)
        return removed

    def _pack(self, end: int, loose: set[int]) -> int:
        slots = range(end - PACK_SLOTS + 1, end + 1)
        if not self._storage.exists(archive_path(end)):
            contents = [self._storage.read(slot_path(slot)) or b"" for slot in slots]
            content = b"".join(contents)
            if len(content) > ARCHIVE_BYTES_MAX or not all(map(_is_whole, contents)):
                return 0  # a damaged slot stays a file of its own, which can be restored alone
            self._storage.put_if_absent(archive_path(end), content)
        # Whoever put the archive may have been killed before its name was on the disk.
        self._storage.keep(archive_path(end))
        removed = 0
        for slot in slots:
            if slot in loose and self._archived(slot) == self._storage.read(slot_path(slot)):
                self._storage.remove(slot_path(slot))
                removed += 1
        return removed

    def _archived(self, slot: int) -> bytes | None:
        """What the archive of its pack says of a slot, None when there is no archive."""
        end = _pack_end(slot)
        if self._newest_archive[0] != end:
            content = self._storage.read(archive_path(slot))
            if content is None:
                return None
            lines = content.splitlines(keepends=True)
            if len(lines) != PACK_SLOTS:
                reason = f"it has {len(lines)} decisions instead of {PACK_SLOTS}"
                raise BadDecision(self._storage.describe(archive_path(slot)), reason)
            self._newest_archive = (end, lines)
        return self._newest_archive[1][slot - end - 1]


def _is_whole(content: bytes) -> bool:
    """Whether it is one line and the document that it says it is."""
    try:
        read_document(content, Decision)
    except ValueError:
        return False
    return content.count(b"\n") == 1 and content.endswith(b"\n")
