"""Sessions on disk: a chat's tokens and KV in one safetensors file, so that a restart need not compute them again.

```
kv        [layers, blocks, 2, kv_heads, block_size, head_dim], the session's table in logical order
metadata  manifest: what must agree before any of it may be used, the tokens, and a checksum over all of it
```
KV is only worth keeping for the very model, layout and numbers that wrote it: the manifest names them all, and what
disagrees is named and the KV left unread. A file is read and written in pieces, by plain reads into memory of the
reader's own: whoever does it in a thread leaves the other threads to their work, and a file that another process cuts
short meanwhile ends no process, as a mapped one would.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.sessions import leftovers

FORMAT = 2
_PIECE = 8 << 20
"""Bytes that are read, written or hashed between two looks at whether to stop; a multiple of every dtype's size."""
_LONGEST_HEADER = 256 << 20
_CODES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""How safetensors names the dtypes that KV may have."""
_EXPONENTS: dict[str, tuple[type[np.unsignedinteger], int]] = {
    "float32": (np.uint32, 0x7F80_0000),
    "bfloat16": (np.uint16, 0x7F80),
    "float16": (np.uint16, 0x7C00),
}
"""The bits that are all set in infinity and NaN, and in no other number."""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class KvForm:
    """What one block's KV looks like, in the order of the axes."""

    layers: int
    kv_heads: int
    block_size: int
    head_dim: int
    dtype: str

    def shape(self, blocks: int) -> tuple[int, ...]:
        return (self.layers, blocks, 2, self.kv_heads, self.block_size, self.head_dim)

    def nbytes(self, blocks: int) -> int:
        return prod(self.shape(blocks)) * np.dtype(_EXPONENTS[self.dtype][0]).itemsize

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Beside the KV of a session."""

    format: int
    model_key: str
    """Names configuration and weight files: see `model_key`."""
    weights_dtype: str
    """The numbers that the weights are held in, which KV depends on."""
    compute_dtype: str
    layout: str
    """Names the order of the axes and their sizes."""
    dtype: str
    """The KV's."""
    block_size: int
    salt_key: str
    """The hash of the salt, by which a mismatch is told without telling the salt."""
    salt: str
    """Hexadecimal: only requests of this salt may go on with the session."""
    tokens: list[int]
    """Those whose KV is in the file."""
    checksum: str = ""
    """SHA-256 over this manifest (with an empty checksum) and the KV."""


class SessionMismatch(ValueError):
    """The file is not a saved session, or is damaged, or is another model's or owner's; or the engine cannot do what
    was asked. The message says which, for people."""


class Cancelled(Exception):
    """The engine is ending, and what was being read or written is given up."""


@dataclass(frozen=True, slots=True)
class SavedSession:
    """What a file held, all of it checked."""

    tokens: list[int]
    salt: bytes
    kv: Bytes
    """The KV's bytes, as `KvForm.shape` orders them."""


def model_key(directory: Path) -> str:
    """Names the model in a directory: SHA-256 over config.json and, of each weight file, its size, its header, and the
    first and middle 4 KiB of each of its tensors.

    Reading gigabytes of weights at each start would cost more than the KV is worth. A file of the same size, with the
    same tensors in the same places that also agree there, is taken to be the same.
    """
    digest = hashlib.sha256((directory / "config.json").read_bytes())
    for path in sorted(directory.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(f"{path.name} {path.stat().st_size} ".encode())
            header = file.read(min(int.from_bytes(file.read(8), "little"), _LONGEST_HEADER))
            digest.update(header)
            start = 8 + len(header)
            for begin, end in sorted(_extents(header)):
                for place in (begin, (begin + end) // 2):
                    file.seek(start + place)
                    digest.update(file.read(min(4096, end - place)))
    return digest.hexdigest()


def _extents(header: bytes) -> list[tuple[int, int]]:
    """Where the tensors of a safetensors file lie behind its header; nothing for a header that is none."""
    try:
        entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        return [
            msgspec.json.decode(raw, type=_Entry).data_offsets for name, raw in entries.items() if name != _METADATA
        ]
    except msgspec.MsgspecError:
        return []


def salt_key(salt: bytes) -> str:
    return hashlib.sha256(b"pagechat session" + salt).hexdigest()


# -- writing ---------------------------------------------------------------------------------------


def write(path: Path, manifest: Manifest, form: KvForm, kv: Bytes, cancelled: threading.Event) -> int:
    """Write a session, whole or not at all. Returns the file's size in bytes.

    Raises SessionMismatch when a number is not finite, OSError when the disk is full, Cancelled. Whatever is raised,
    the file that was there stays, and nothing is left beside it.
    """
    blocks = form.blocks_for(len(manifest.tokens))
    if not _finite(kv, manifest.dtype, cancelled):
        raise SessionMismatch("the session's KV holds numbers that are not finite, so it is not saved")
    manifest = msgspec.structs.replace(manifest, checksum=_checksum(manifest, kv, cancelled))
    entry = _Entry(dtype=_CODES[manifest.dtype], shape=list(form.shape(blocks)), data_offsets=(0, kv.nbytes))
    header = msgspec.json.encode(
        _Header(kv=entry, metadata={"format": "pt", "manifest": msgspec.json.encode(manifest).decode()})
    )
    header += b" " * (-len(header) % 8)
    temporary = leftovers.temporary(path)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            leftovers.mark(descriptor)
            file.write(len(header).to_bytes(8, "little") + header)
            for piece in _pieces(kv, cancelled):
                file.write(piece.data)
            file.flush()
            os.fsync(descriptor)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)
    return 8 + len(header) + kv.nbytes


def _sync_folder(folder: Path) -> None:
    """Make the new name last, as the content does already."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has no such thing
            raise
    finally:
        os.close(descriptor)


# -- reading ---------------------------------------------------------------------------------------


def read(
    path: Path,
    here: Manifest,
    form: KvForm,
    vocab_size: int,
    has_room: Callable[[int, int], None],
    cancelled: threading.Event,
) -> SavedSession:
    """A saved session whose every part was checked.

    `here` is the manifest that this engine would write, its tokens ignored; with a salt, only a session of that salt is
    read. `form` is what this engine's blocks look like. `has_room(tokens, nbytes)` is
    asked before the KV is read, and raises SessionMismatch when it would not fit. Raises SessionMismatch, Cancelled.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe of this name would wait
    except FileNotFoundError:
        raise SessionMismatch("there is no saved session of this name") from None
    except OSError as error:
        raise _unreadable(error.strerror or str(error)) from None
    with open(descriptor, "rb", buffering=0) as file:
        try:
            header, start = _read_header(file)
            manifest = _read_manifest(header)
            _check(manifest, here, vocab_size)
            blocks = _check_tensor(header.kv, manifest, form, os.fstat(descriptor).st_size - start)
            has_room(len(manifest.tokens), header.kv.data_offsets[1])
            kv = np.empty(form.nbytes(blocks), dtype=np.uint8)
            for piece in _pieces(kv, cancelled):
                _read_into(file, piece)
        except (OSError, MemoryError) as error:
            raise _unreadable(str(error) or "there is no memory for it") from None
    if _checksum(manifest, kv, cancelled) != manifest.checksum:
        raise SessionMismatch(
            "the saved session is damaged: its tokens and KV are not those that were saved (the checksum differs)"
        )
    if not _finite(kv, manifest.dtype, cancelled):
        raise SessionMismatch("the saved session is damaged: its KV holds numbers that are not finite")
    return SavedSession(manifest.tokens, bytes.fromhex(manifest.salt), kv)


_METADATA = "__metadata__"


class _Entry(msgspec.Struct, frozen=True):
    """A tensor in the header of a safetensors file."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Header(msgspec.Struct, frozen=True):
    kv: _Entry
    metadata: dict[str, str] = msgspec.field(name=_METADATA)


class _Format(msgspec.Struct, frozen=True):
    format: int


def _unreadable(why: str) -> SessionMismatch:
    return SessionMismatch(f"the saved session cannot be read: {why}")


def _read_header(file: BinaryIO) -> tuple[_Header, int]:
    """The header, and where the tensor begins."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise _unreadable("it is no file")
    if status.st_size < 8:
        raise _unreadable(f"it has {status.st_size} bytes")
    length = np.empty(8, dtype=np.uint8)
    _read_into(file, length)
    size = int.from_bytes(length.tobytes(), "little")
    if not 2 <= size <= min(status.st_size - 8, _LONGEST_HEADER):
        raise _unreadable(f"it says that its header has {size} bytes, and the file has {status.st_size}")
    raw = np.empty(size, dtype=np.uint8)
    _read_into(file, raw)
    try:
        return msgspec.json.decode(raw.tobytes(), type=_Header), 8 + size
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _unreadable(f"its header is damaged ({error})") from None


def _read_manifest(header: _Header) -> Manifest:
    text = header.metadata.get("manifest", "")
    try:
        found = msgspec.json.decode(text, type=_Format).format
        if found < FORMAT:
            raise SessionMismatch(
                f"the session was saved by an older pagechat (format {found}, this one reads {FORMAT}); save it again"
            )
        if found > FORMAT:
            raise SessionMismatch(f"the session was saved by a newer pagechat (format {found}, not {FORMAT})")
        manifest = msgspec.json.decode(text, type=Manifest)
        bytes.fromhex(manifest.salt)
    except SessionMismatch:
        raise
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _unreadable(f"its manifest is damaged ({error})") from None
    return manifest


def _check(manifest: Manifest, here: Manifest, vocab_size: int) -> None:
    for field in ("model_key", "weights_dtype", "compute_dtype", "layout", "dtype", "block_size"):
        saved, mine = getattr(manifest, field), getattr(here, field)
        if saved != mine:
            raise SessionMismatch(f"the saved session has {field} {saved!r}, this engine {mine!r}")
    if manifest.salt_key != salt_key(bytes.fromhex(manifest.salt)):
        raise SessionMismatch("the saved session is damaged: its salt_key is not its salt's")
    if here.salt and manifest.salt_key != here.salt_key:
        raise SessionMismatch("the saved session has another owner's salt_key")
    if not manifest.tokens:
        raise SessionMismatch("the saved session is damaged: it holds no tokens")
    odd = next((token for token in manifest.tokens if not 0 <= token < vocab_size), None)
    if odd is not None:
        raise SessionMismatch(f"the saved session is damaged: token {odd} is not one of 0..{vocab_size - 1}")


def _check_tensor(entry: _Entry, manifest: Manifest, form: KvForm, size: int) -> int:
    """The blocks in the file, of which `size` bytes lie behind the header."""
    blocks = form.blocks_for(len(manifest.tokens))
    code, shape = _CODES[manifest.dtype], form.shape(blocks)
    if entry.dtype != code:
        raise SessionMismatch(f"the saved session's KV has dtype {entry.dtype[:20]!r}, this engine {code!r}")
    if tuple(entry.shape) != shape:
        raise SessionMismatch(
            f"the saved session holds KV of shape {tuple(entry.shape[:8])} for {len(manifest.tokens)} tokens, "
            f"this engine would hold {shape}"
        )
    nbytes = form.nbytes(blocks)
    if entry.data_offsets != (0, nbytes) or size != nbytes:
        raise _unreadable(f"{size} bytes of KV where {nbytes} belong")
    return blocks


# -- bytes -----------------------------------------------------------------------------------------


def _pieces(data: Bytes, cancelled: threading.Event) -> Iterator[Bytes]:
    for start in range(0, len(data), _PIECE):
        if cancelled.is_set():
            raise Cancelled
        yield data[start : start + _PIECE]


def _read_into(file: BinaryIO, piece: Bytes) -> None:
    done = 0
    while done < len(piece):
        count = file.readinto(piece[done:].data)  # type: ignore[attr-defined]
        if not count:
            raise _unreadable("it ended while it was read")
        done += count


def _checksum(manifest: Manifest, kv: Bytes, cancelled: threading.Event) -> str:
    digest = hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(manifest, checksum="")))
    for piece in _pieces(kv, cancelled):
        digest.update(piece.data)
    return digest.hexdigest()


def _finite(kv: Bytes, dtype: str, cancelled: threading.Event) -> bool:
    """Whether every number is one. numpy rather than torch, whose threads would take the cores of a step."""
    kind, exponent = _EXPONENTS[dtype]
    mask = kind(exponent)
    return not any(((piece.view(kind) & mask) == mask).any() for piece in _pieces(kv, cancelled))
