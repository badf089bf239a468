"""Telemetry in a file: what `pagechat-daemon record` writes and `pagechat --replay` plays.

A MessagePack stream: a header, then frames, each a snapshot or a report exactly as it came.

```
{"pagechat": 1, "model": ..., "device": ...}
[unix time, b"...Snapshot or StepReport..."] ...
```
Snapshots are places to start from: one at the beginning, one after every gap, and one every now and then so that
going back is quick. A file that ends in the middle of a frame is read up to there. Nothing in it is executed.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgpack
import msgspec

from engine import protocol
from engine.protocol import Snapshot, StepReport

FORMAT = 1
MAX_FRAME = 64 * 2**20
MAX_FILE = 2 * 2**30


class RecordingError(Exception):
    """The file is no recording, or cannot be read; the message names it."""


@dataclass(frozen=True, slots=True)
class Frame:
    time: float
    """Unix time, seconds."""
    content: Snapshot | StepReport


@dataclass(frozen=True, slots=True)
class Recording:
    model: str
    device: str
    frames: list[Frame]
    """The first is a snapshot."""
    complete: bool
    """False: the file ends in the middle of a frame."""

    @property
    def seconds(self) -> float:
        return self.frames[-1].time - self.frames[0].time


class Recorder:
    """Writes one recording. `full` once it has reached its bound."""

    def __init__(self, file: BinaryIO, model: str, device: str, max_bytes: int) -> None:
        self._file, self._max = file, max_bytes
        self.bytes = 0
        self.frames = 0
        self._write({"pagechat": FORMAT, "model": model, "device": device})

    @property
    def full(self) -> bool:
        return self.bytes >= self._max

    def add(self, time: float, content: Snapshot | StepReport) -> None:
        self._write([time, protocol.encode(content)])
        self.frames += 1

    def _write(self, value: Any) -> None:
        packed = msgpack.packb(value)
        self._file.write(packed)
        self._file.flush()  # whoever kills this process loses nothing that was said
        self.bytes += len(packed)


def load(path: Path) -> Recording:
    """Reads a recording whole. Raises RecordingError."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise RecordingError(f"{path} is larger than {MAX_FILE // 2**30} GiB")
        data = path.read_bytes()
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error}") from None
    unpacker = msgpack.Unpacker(io.BytesIO(data), max_buffer_size=MAX_FILE, max_bin_len=MAX_FRAME, strict_map_key=True)
    header = _header(path, unpacker)
    frames, complete = _frames(path, unpacker)
    while frames and not isinstance(frames[0].content, Snapshot):
        frames.pop(0)
    if not frames:
        raise RecordingError(f"{path} ends before its first snapshot")
    complete = complete and unpacker.tell() == len(data)
    return Recording(str(header.get("model", "")), str(header.get("device", "")), frames, complete)


def _header(path: Path, unpacker: Any) -> dict[str, Any]:
    try:
        header = next(unpacker)
    except (StopIteration, ValueError, msgpack.UnpackException):
        header = None
    if not isinstance(header, dict) or "pagechat" not in header:
        raise RecordingError(f"{path} is no recording of pagechat")
    if header["pagechat"] != FORMAT:
        raise RecordingError(f"{path} has format {header['pagechat']!r}; this pagechat reads {FORMAT}")
    return header


def _frames(path: Path, unpacker: Iterator[Any]) -> tuple[list[Frame], bool]:
    """(the frames that can be read, whether nothing that cannot came after them)."""
    frames: list[Frame] = []
    while True:
        try:
            time, frame = next(unpacker)
            frames.append(Frame(_moment(time), _decode(frame)))
        except StopIteration:
            return frames, True
        except (ValueError, TypeError, msgpack.UnpackException):
            return frames, False


_CONTENT: msgspec.msgpack.Decoder[Snapshot | StepReport] = msgspec.msgpack.Decoder(Snapshot | StepReport)


def _moment(time: Any) -> float:
    """Raises ValueError for one that is on no clock."""
    moment = float(time)
    if not 0 <= moment < 2**40:
        raise ValueError(f"{moment} is no Unix time")
    return moment


def _decode(frame: bytes) -> Snapshot | StepReport:
    """Raises ValueError for what no pool can be."""
    content = _CONTENT.decode(frame)
    if isinstance(content, Snapshot):
        blocks = [content.cached, content.addressable, *(sequence.blocks for sequence in content.sequences)]
        if any(not 1 <= block <= content.num_blocks for some in blocks for block in some):
            raise ValueError("a snapshot names a block that its pool has not")
    return content
