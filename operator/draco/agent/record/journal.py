"""An append-only file of checksummed entries, in reserved space.

Owns the file format, the choice between appending and rewriting, and what a damaged file still proves. Knows nothing of the
entries' meaning.

The file has one JSON object a line, each with a checksum over itself and all before it, then spaces up to its full size.
Appending overwrites those spaces, which takes one fdatasync and nothing that a full disk could refuse. When the space is used up,
the file is rewritten as one entry with everything. Some space is kept free for entries that must never fail.

An interrupted write leaves a last line without its end; it was never acknowledged and does not count. Any other checksum mismatch
is damage, and so is a file shorter than its first line says.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from draco.agent.files import Files

VERSION = 3
"""The version of the file's format."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding damaged bytes may raise."""

ROOM = 64 * 1024
"""Least free space of a fresh file, in bytes."""
PAGE = 4096
_PAD = b" "


class _Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    version: int
    checksum: str
    entry: msgspec.Raw
    size: int = 0  # of the file, in bytes; in the first line only


class _Versioned(msgspec.Struct):
    version: int


class Position(msgspec.Struct, frozen=True):
    """Where a journal continues: after the line with this checksum, in a file of that size."""

    end: int
    checksum: str
    size: int


class JournalContents(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file. `entries` are those before `damage`, a sentence's end. `position` None: rewrite the file to add."""

    entries: Sequence[bytes]
    damage: str = ""
    position: Position | None = None


def read(content: bytes) -> JournalContents:
    """The entries of a file that can be trusted."""
    entries: list[bytes] = []
    checksum, size, start, clean = "", 0, 0, True
    while (end := content.find(b"\n", start)) >= 0:
        line = _line(content[start:end], checksum)
        if line is None:
            return JournalContents(entries=entries, damage=_damage(content[start:end], start))
        entries.append(bytes(line.entry))
        checksum, size, start = line.checksum, line.size or size, end + 1
    rest = content[start:].rstrip(_PAD)
    if rest:
        clean = False
        line = _line(rest, checksum) or _line(rest[:-1], checksum)
        if line is not None:  # only the newline is lost or overwritten
            entries.append(bytes(line.entry))
            size = line.size or size
    if not entries:
        return JournalContents(entries=[], damage="is incomplete")
    if len(content) < size:
        return JournalContents(entries=entries, damage=f"has {len(content)} of {size} bytes")
    return JournalContents(entries=entries, position=Position(start, checksum, len(content)) if clean else None)


def _line(text: bytes, after: str) -> _Line | None:
    try:
        line = msgspec.json.decode(text, type=_Line)
    except UNREADABLE:
        return None
    if line.version != VERSION or line.checksum != _checksum(after, line.size, bytes(line.entry)):
        return None
    return line


def _damage(text: bytes, at: int) -> str:
    with suppress(*UNREADABLE):
        version = msgspec.json.decode(text, type=_Versioned).version
        if version != VERSION:
            return f"has version {version}, but this agent reads only version {VERSION}"
    return f"does not match its checksum at byte {at}"


def _checksum(after: str, size: int, entry: bytes) -> str:
    return hashlib.sha256(f"{after} {size} ".encode() + entry).hexdigest()


def _encoded(after: str, entry: bytes, size: int = 0) -> tuple[bytes, str]:
    checksum = _checksum(after, size, entry)
    line = _Line(version=VERSION, checksum=checksum, entry=msgspec.Raw(entry), size=size)
    return msgspec.json.encode(line) + b"\n", checksum


class Journal:
    """Writes one journal. After a disk error the next entry rewrites the file."""

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files
        self._at: Position | None = None

    def go_on(self, position: Position | None) -> None:
        """Append after `position`."""
        self._at = position

    def append(self, entry: bytes, *, keep_free: int) -> bool:
        """Append an entry, durably. False if fewer than `keep_free` bytes would remain: rewrite the file then.

        Raises OSError if the disk refuses; the entry may be written or not.
        """
        return self._append(entry, keep_free, self._files.overwrite)

    def append_volatile(self, entry: bytes, *, keep_free: int) -> bool:
        """Like `append`, without waiting for the disk: durable with the next durable entry."""
        return self._append(entry, keep_free, self._files.overwrite_volatile)

    def _append(self, entry: bytes, keep_free: int, overwrite: Callable[[Path, int, bytes], None]) -> bool:
        at = self._at
        if at is None:
            return False
        line, checksum = _encoded(at.checksum, entry)
        if at.size - at.end - len(line) < keep_free:
            return False
        self._at = None
        try:
            overwrite(self._path, at.end, line)
        except FileNotFoundError:
            return False  # somebody removed it
        self._at = Position(at.end + len(line), checksum, at.size)
        return True

    def rewrite(self, entry: bytes, *, keep_free: int) -> None:
        """Replace the file by one with a single entry and free space. On an OSError it is unchanged."""
        longest = len(entry) + 256
        size = math.ceil((longest + ROOM + 2 * keep_free) / PAGE) * PAGE
        line, checksum = _encoded("", entry, size)
        self._files.write(self._path, line.ljust(size, _PAD))
        self._at = Position(len(line), checksum, size)
