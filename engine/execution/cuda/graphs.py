"""Decode steps as CUDA graphs: from the upload of a step's numbers to its sampled tokens, nothing of it is Python.

A graph is captured for a batch size and a kind of attention work; a step runs in the next larger one, filled up with
padding that reads the null block. Every size in it is the graph's: what differs from step to step lies in memory that
the graph reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.execution.cuda.inputs import PinnedInputs, upload
from engine.execution.cuda.tables import DeviceTables
from engine.execution.step_input import SAMPLING, Ints
from kernels.torch.linear import PackedLinear
from kernels.triton.draw import DeviceRows, draw
from kernels.triton.launch import FEW_ROWS, embed, linear_into, patch, rms_norm
from kernels.triton.plan import AttentionPlan, Items, program_target
from kernels.triton.work import Work

if TYPE_CHECKING:
    from engine.models.loading.load import LoadedModel

Kind = Literal["whole", "split", "shared"]
"""whole: every sequence is read by one program a head. split: some by several, whose parts are merged.
shared: blocks that several sequences have in common are read once."""

KINDS: tuple[Kind, ...] = get_args(Kind)

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
_SHARED_SIZES = {4, 8, 16, 32, 64, 128, 192, 256, 384}
_COLUMNS = {"temperatures": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "seeds": "seed"}
"""Inputs of the sampling kernels, and the fields of SAMPLING they come from."""
_PATCHES = 1024
"""Table entries that a graph patches; a step with more of them uploads the rest by itself."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences that decode together, in the order the attention work wants; the same for many steps."""

    rows: NDArray[np.int32]
    """The rows that the sequences have."""
    settings: NDArray[np.void]
    """SAMPLING: how each token is drawn."""
    work: Work
    kind: Kind


class DecodeGraphs:
    """The graphs, and the memory they share."""

    def __init__(
        self, model: LoadedModel, kv: Sequence[Tensor], tables: DeviceTables, block_size: int, max_batch: int
    ) -> None:
        self.sizes = [size for size in SIZES if size < max_batch] + [max_batch]
        self.out = torch.zeros(max_batch, dtype=torch.int32, device=model.device)
        """The tokens of the last step, in its batch's order."""
        self.newest = torch.zeros(len(tables.host), dtype=torch.int32, device=model.device)
        """Each row's token that was sampled last."""
        self.logits = torch.zeros(max_batch, model.config.vocab_size, dtype=model.dtype, device=model.device)
        """The logits of the last step, in its batch's order, as the model gave them."""
        config = model.config
        self._model, self._kv, self._tables, self._block_size = model, kv, tables, block_size
        self._spread = 2 * program_target(model.device) // config.kv_heads
        """Items that cutting adds at most."""
        limits = self._limits(max_batch, "shared")
        parts = 8 * max_batch + 16 * self._spread
        self._parts = torch.empty(parts, config.heads, config.head_dim, dtype=torch.float32, device=model.device)
        self._lse = torch.empty(parts, config.heads, dtype=torch.float32, device=model.device)
        word, number, each = torch.int32, torch.float32, (max_batch,)
        self._inputs = PinnedInputs(
            {
                "ids": (each, word),
                "positions": (each, word),
                "places": (each, word),
                "patched": ((1,), word),
                "patches": ((_PATCHES, 3), word),
            },
            model.device,
        )
        self._batch: Batch | None = None
        self._batch_inputs = PinnedInputs(
            {
                "counts": ((3,), word),
                "rows": (each, word),
                "temperatures": (each, number),
                "top_k": (each, word),
                "top_p": (each, number),
                "min_p": (each, number),
                "seeds": (each, torch.int64),
                "narrow": ((limits[0], 6), word),
                "wide": ((limits[1], 6), word),
                "merges": ((max_batch, 3), word),
                "entries": ((parts,), word),
            },
            model.device,
        )
        self._graphs: dict[tuple[int, Kind], torch.cuda.CUDAGraph] = {}
        self.captured = 0
        """Graphs made so far."""
        self._memory = torch.cuda.graph_pool_handle()

    def kind_of(self, work: Work, batch: int) -> Kind | None:
        """Which graphs do this work; None when none has room for it."""
        kind: Kind = "shared" if len(work.wide) or len(work.narrow) > batch + self._spread else "split"
        if not len(work.merges):
            kind = "whole"
        narrow, wide = self._limits(self._size(batch, kind), kind)
        fits = len(work.narrow) <= narrow and len(work.wide) <= wide and work.parts <= len(self._parts)
        return kind if fits else None

    def capture_all(self, tell: Callable[[str, int, int], None]) -> None:
        """Make every graph that a step may ask for, the largest first, so that the smaller ones use its memory.

        `tell` gets a name, how many are there, and of how many.
        """
        wanted = [(size, kind) for kind in KINDS for size in reversed(self._sizes_of(kind))]
        for number, (size, kind) in enumerate(wanted):
            tell(f"CUDA graph for {size} sequences ({kind})", number, len(wanted))
            self._capture(size, kind)

    def _capture(self, size: int, kind: Kind) -> None:
        self._fill_idle(size)
        if size in (min(FEW_ROWS, self.sizes[-1]), self.sizes[-1]):
            self._run(size, kind)  # lets libraries set themselves up for few rows and for many
            torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            self._run(size, kind)
        self._graphs[size, kind] = graph
        self.captured += 1

    def _sizes_of(self, kind: Kind) -> list[int]:
        """Batch sizes of a kind's graphs. Fewer for `shared`: what it saves is more than padding costs."""
        if kind != "shared":
            return self.sizes
        return sorted({self.sizes[-1], *_SHARED_SIZES.intersection(self.sizes)})

    def launch(self, batch: Batch, ids: Ints, positions: Ints, patches: Ints) -> None:
        """Start a step; its tokens will be in `out`, in the batch's order, and each row's in `newest`.

        ids: -(r + 1) is the token that row r sampled last. patches [P, 3]: what changes of the block tables before it.
        """
        count = len(ids)
        size = self._size(count, batch.kind)
        if (size, batch.kind) not in self._graphs:  # nobody has called `capture_all`
            self._capture(size, batch.kind)
        if batch is not self._batch:
            self._upload(batch, size)
        if len(patches) > _PATCHES:
            self.patch(patches[_PATCHES:])
            patches = patches[:_PATCHES]
        arrays = self._inputs.next()
        arrays["ids"][:count], arrays["ids"][count:size] = ids, 0
        arrays["positions"][:count], arrays["positions"][count:size] = positions, 0
        arrays["places"][:count] = positions + 1
        arrays["patched"][0] = len(patches)
        arrays["patches"][: len(patches)] = patches
        self._inputs.upload()
        self._graphs[size, batch.kind].replay()

    def _upload(self, batch: Batch, size: int) -> None:
        """Upload what stays the same while the batch does."""
        self._batch, work, count = batch, batch.work, len(batch.rows)
        arrays = self._batch_inputs.next()
        arrays["counts"][:] = len(work.narrow), len(work.wide), len(work.merges)
        arrays["rows"][:count], arrays["rows"][count:size] = batch.rows, self._tables.null_row
        for name, column in _COLUMNS.items():
            arrays[name][:count] = batch.settings[column]
        arrays["temperatures"][count:size] = 0
        arrays["narrow"][: len(work.narrow)] = work.narrow
        arrays["wide"][: len(work.wide)] = work.wide
        arrays["merges"][: len(work.merges)] = work.merges
        arrays["entries"][: len(work.entries)] = work.entries
        self._batch_inputs.upload()

    def patch(self, patches: Ints) -> None:
        """Apply changes of the tables by themselves."""
        if len(patches):
            table, count = upload([patches, np.array([len(patches)], np.int32)], self._model.device)
            patch(self._tables.device, table, count, len(patches))

    def embed(self, ids: Tensor) -> Tensor:
        """[T, hidden] of ids [T], negative ones from `newest`."""
        return embed(ids, self.newest, self._model.decoder.embedding, self._model.dtype)

    def _size(self, batch: int, kind: Kind) -> int:
        return next(size for size in self._sizes_of(kind) if size >= batch)

    def _limits(self, size: int, kind: Kind) -> tuple[int, int]:
        """Most narrow and wide items of a graph."""
        if kind == "whole":
            return size, 0
        if kind == "split":
            return size + self._spread, 0
        return 2 * size + self._spread, size // 2 + self._spread

    def _fill_idle(self, size: int) -> None:
        """Inputs of nothing but padding: what a capture may run on."""
        nothing = np.zeros((0, 6), dtype=np.int32)
        work = Work(nothing, nothing, nothing[:, :3], nothing[:, 0], 0)
        self._upload(Batch(nothing[:, 0], np.zeros(0, SAMPLING), work, "whole"), size)
        self._batch = None
        arrays = self._inputs.next()
        for array in arrays.values():
            array[:] = 0
        self._inputs.upload()

    def _run(self, size: int, kind: Kind) -> None:
        inputs, model = self._inputs.device | self._batch_inputs.device, self._model
        narrow, wide = self._limits(size, kind)
        merges = 0 if kind == "whole" else size
        patch(self._tables.device, inputs["patches"], inputs["patched"], _PATCHES)
        plan = AttentionPlan(
            positions=inputs["positions"][:size],
            rows=inputs["rows"][:size],
            tables=self._tables.device,
            narrow=Items(inputs["narrow"], inputs["counts"][0:1], narrow),
            wide=Items(inputs["wide"], inputs["counts"][1:2], wide),
            merges=Items(inputs["merges"], inputs["counts"][2:3], merges),
            entries=inputs["entries"],
            parts=self._parts,
            lse=self._lse,
            heads=model.config.heads,
            kv_heads=model.config.kv_heads,
            block_size=self._block_size,
            shared=kind == "shared",
        )
        hidden = model.decoder.forward(self.embed(inputs["ids"][:size]), self._kv, plan)
        rows = DeviceRows(
            *(inputs[name][:size] for name in ("temperatures", "top_k", "top_p", "min_p", "seeds", "places"))
        )
        logits = self.logits[:size]
        decoder = model.decoder
        assert isinstance(decoder.head, PackedLinear)
        linear_into(rms_norm(hidden, decoder.norm, model.config.norm.eps), decoder.head, logits)
        draw(logits, rows, self.out, self.newest, inputs["rows"])
