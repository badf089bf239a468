"""An engine from its configuration: the model loaded, the pool as large as memory allows, the first step done.

Imports torch, so whoever must answer before that imports this late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine import models
from engine.core import EngineCore
from engine.execution.make import make_runner
from engine.execution.runner import Runner
from engine.process.config import EngineConfig
from engine.process.memory import choose_host_slots, choose_num_blocks
from engine.protocol import LoadProgress, ModelInfo
from engine.sampling.grammar.compile import GrammarCompiler


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that is ready to step."""

    core: EngineCore
    runner: Runner
    model: ModelInfo
    path: Path
    """The model lies in this folder."""
    num_blocks: int


def build(config: EngineConfig, tell: Callable[[LoadProgress], None]) -> Engine:
    """Build an engine, which takes seconds. Raises what loading raises, and ModelError for too little memory."""
    path = models.resolve(config.model, tell)
    model = models.load(path, config, tell)
    num_blocks = choose_num_blocks(config, model)
    host_slots = choose_host_slots(config, model, num_blocks)
    step_tokens, max_running = config.limits(model.device)
    runner = make_runner(model, num_blocks, config.block_size, host_slots, max_running)
    core = EngineCore(
        runner,
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_context=model.info.max_context,
        vocab_size=model.info.vocab_size,
        step_tokens=step_tokens,
        max_running=max_running,
        prefix_cache=config.prefix_cache,
        policy=config.policy,
        host_slots=host_slots,
        grammars=GrammarCompiler(path, model.info.vocab_size),
    )
    tell(LoadProgress(stage="warming", detail="first step"))
    runner.warm_up(lambda what, done, total: tell(LoadProgress(stage="warming", detail=what, done=done, total=total)))
    if host_slots:
        core.costs.saw_blocks(*runner.time_swap())
    info = msgspec.structs.replace(model.info, max_context=core.max_context)
    return Engine(core, runner, info, path, num_blocks)
