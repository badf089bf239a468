"""Sessions on disk: a chat's tokens and KV in one safetensors file, so that a restart need not compute them again.

```
kv        [layers, blocks, 2, kv_heads, block_size, head_dim], the session's table in logical order
metadata  manifest: what must agree before any of it may be used, and the tokens
```
KV is only worth keeping for the very model, layout and dtype that wrote it: all three are in the
manifest, and what disagrees is named and the KV left unread.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Beside the KV of a session."""

    format: int
    model_key: str
    """Of configuration and weights: see `model_key`."""
    layout: str
    dtype: str
    block_size: int
    salt_key: str
    """Hash of the salt that the session's owner uses: another's session is never restored."""
    tokens: list[int]
    """Those whose KV is in the file."""


class SessionMismatch(ValueError):
    """The file is not a saved session, or of another model, layout or owner. The message says which."""


def model_key(directory: Path) -> str:
    """Names the model in a directory: SHA-256 over config.json and, of each weight file, its size, header and ends.

    Reading gigabytes of weights at each start would cost more than the KV is worth; a file that has
    the same size, the same tensors in the same places and the same first and last megabyte is the same.
    """
    digest = hashlib.sha256((directory / "config.json").read_bytes())
    edge = 1 << 20
    for path in sorted(directory.glob("*.safetensors")):
        with path.open("rb") as file:
            size = path.stat().st_size
            digest.update(f"{path.name} {size} ".encode())
            header = int.from_bytes(file.read(8), "little")
            digest.update(file.read(min(header, size) + edge))
            file.seek(max(0, size - edge))
            digest.update(file.read(edge))
    return digest.hexdigest()


def salt_key(salt: bytes) -> str:
    return hashlib.sha256(b"pagechat session" + salt).hexdigest()


def save(path: Path, manifest: Manifest, kv: Tensor) -> int:
    """Write a session, whole or not at all. Returns the bytes written."""
    from safetensors.torch import save_file

    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        save_file({"kv": kv}, temporary, metadata={"manifest": msgspec.json.encode(manifest).decode()})
        temporary.chmod(0o600)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path.stat().st_size


def load(path: Path, expected: Manifest) -> tuple[list[int], Tensor]:
    """(tokens, kv) of a saved session. `expected` is the manifest this engine would write, its tokens ignored.

    Raises SessionMismatch; the file's content is checked before any of it is used.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            found = msgspec.json.decode((file.metadata() or {}).get("manifest", ""), type=Manifest)
            for field in ("format", "model_key", "layout", "dtype", "block_size", "salt_key"):
                saved, here = getattr(found, field), getattr(expected, field)
                if saved != here:
                    raise SessionMismatch(f"the saved session has {field} {saved!r}, this engine {here!r}")
            kv = file.get_tensor("kv")
    except FileNotFoundError:
        raise SessionMismatch("there is no saved session of this name") from None
    except (SafetensorError, msgspec.DecodeError, OSError) as error:
        raise SessionMismatch(f"the saved session cannot be read: {error}") from None
    blocks = -(-len(found.tokens) // found.block_size)
    if kv.ndim != 6 or kv.shape[1] != blocks or not found.tokens:
        raise SessionMismatch(f"the saved session holds {tuple(kv.shape)} for {len(found.tokens)} tokens")
    return found.tokens, kv
