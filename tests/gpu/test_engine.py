"""The engine on a GPU says what it says on the CPU, in float32, whatever happens to its memory."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch

from engine import models
from engine.core import EngineCore
from engine.execution.cuda.runner import CudaRunner
from engine.execution.make import make_runner
from engine.models.loading.load import LoadedModel
from engine.process.config import EngineConfig
from engine.protocol import AddRequest, BeamParams, Grammar, SamplingParams
from engine.sampling.grammar.compile import GrammarCompiler
from tests.engine.fakes import run, tokens_of
from tests.engine.together import Together, random_history
from tests.models import tiny_llama

pytestmark = pytest.mark.gpu


def load(directory: Path, device: str, dtype: str = "float32") -> LoadedModel:
    return models.load(directory, EngineConfig(model=str(directory), dtype=dtype, device=device), lambda _: None)  # type: ignore[arg-type]


def make_core(model: LoadedModel, num_blocks: int, block_size: int = 16, **settings: object) -> EngineCore:
    runner = make_runner(model, num_blocks, block_size, int(settings.get("host_slots", 0)), 64)  # type: ignore[call-overload]
    return EngineCore(
        runner,
        num_blocks=num_blocks,
        block_size=block_size,
        max_context=model.info.max_context,
        vocab_size=model.info.vocab_size,
        **settings,  # type: ignore[arg-type]
    )


def ask(core: EngineCore, prompts: list[list[int]], max_tokens: int, **more: object) -> dict[str, list[list[int]]]:
    """Every answer to every prompt."""
    n = int(more.pop("n", 1))  # type: ignore[call-overload]
    beam = more.pop("beam", None)
    for name, prompt in enumerate(prompts):
        sampling = SamplingParams(max_tokens=max_tokens, seed=name, **{"temperature": 0, **more})  # type: ignore[arg-type]
        request = AddRequest(
            request_id=str(name), session=str(name), prompt=tuple(prompt), sampling=sampling, n=n, beam=beam
        )
        core.add(request)
    outputs = run(core)
    return {name: [tokens_of(found, index) for index in range(n)] for name, found in sorted(outputs.items())}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Forty that start alike."""
    rng = random.Random(1)
    stem = [rng.randrange(512) for _ in range(17)]
    return [[*stem, *(rng.randrange(512) for _ in range(rng.randint(1, 9)))] for _ in range(40)]


@pytest.mark.parametrize("swap", [True, False])
def test_preempted_swapped_and_cached_requests(tiny: Path, prompts: list[list[int]], swap: bool) -> None:
    gpu = make_core(load(tiny, "cuda"), 40, 8, max_running=24, host_slots=60)
    gpu.costs.token_s, gpu.costs.block_s = (1.0, 1e-9) if swap else (1e-9, 1.0)
    cpu = make_core(load(tiny, "cpu"), 2000, 8, prefix_cache=False)

    assert ask(gpu, prompts, 24) == ask(cpu, prompts, 24)

    assert gpu.scheduler.preemptions > 0
    gpu.blocks.check()


@pytest.mark.parametrize(
    "settings",
    [
        {"n": 4, "temperature": 0.8},
        {"n": 3, "temperature": 1.0, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
        {"n": 3, "beam": BeamParams(width=3)},
        {"presence_penalty": 0.5, "repetition_penalty": 1.2, "logit_bias": ((7, 3.0), (9, -100.0))},
        {"logprobs": 2},
    ],
    ids=["n=4", "filters", "beam", "penalties", "logprobs"],
)
def test_every_way_of_sampling(tiny: Path, prompts: list[list[int]], settings: dict[str, object]) -> None:
    """Copies on write and all: a prompt's answers, and beams, share its half-filled block."""
    gpu = make_core(load(tiny, "cuda"), 300, max_running=24)
    cpu = make_core(load(tiny, "cpu"), 2000, prefix_cache=False)

    assert ask(gpu, prompts, 20, **settings) == ask(cpu, prompts, 20, **settings)


def test_blocks_read_once_for_many_sequences_change_no_token(tiny: Path) -> None:
    """Sixteen sequences share 400 tokens, eight of them 96 more: read apart from the rest, as the plan says."""
    rng = random.Random(2)
    stem, branch = ([rng.randrange(512) for _ in range(count)] for count in (400, 96))
    prompts = [[*stem, *(branch if i < 8 else []), *(rng.randrange(512) for _ in range(3))] for i in range(16)]
    gpu = make_core(load(tiny, "cuda"), 300)
    cpu = make_core(load(tiny, "cpu"), 2000, prefix_cache=False)
    assert isinstance(gpu.executor, CudaRunner)

    assert ask(gpu, prompts, 12) == ask(cpu, prompts, 12)

    assert "shared" in {decoding.batch.kind for decoding in gpu.executor._batches.values()}


@pytest.mark.parametrize("more", [2, 4, 6, 9])
@pytest.mark.parametrize(
    "then",
    [
        {"temperature": 0.0},
        {"temperature": 1.5, "top_k": 3},
        {"temperature": 1.5, "top_p": 0.5},
        {"temperature": 1.5, "min_p": 0.2},
        {"temperature": 1.5, "repetition_penalty": 2.0},
        {"temperature": 1.5, "logprobs": 1},
    ],
    ids=["greedy", "top_k", "top_p", "min_p", "penalty", "logprobs"],
)
def test_a_kept_chats_next_turn_is_sampled_with_its_own_settings(
    tiny: Path, more: int, then: dict[str, object]
) -> None:
    """The next turn stands in the row of the last one, with the same blocks, a few tokens on."""

    def turns(device: str) -> list[list[int]]:
        core = make_core(load(tiny, device), 300)
        said = []
        history = list(range(30))
        for turn, how in enumerate(({"temperature": 1.5}, then, {"temperature": 1.5})):
            sampling = SamplingParams(max_tokens=12, seed=turn % 2, **how)  # type: ignore[arg-type]
            core.add(
                AddRequest(request_id=str(turn), session="chat", prompt=tuple(history), sampling=sampling, keep=True)
            )
            said.append(tokens_of(run(core)[str(turn)]))
            history += [*said[-1], *range(100, 100 + more)]
        return said

    assert turns("cuda") == turns("cpu")


@pytest.mark.parametrize("seed", range(8))
def test_gpu_and_cpu_say_the_same_through_any_history(tiny: Path, seed: int) -> None:
    blocks, size, slots = 26, 8, 20
    gpu = make_runner(load(tiny, "cuda"), blocks, size, slots, 8)
    together = Together(gpu, make_runner(load(tiny, "cpu"), blocks, size, slots))
    core = EngineCore(
        together,
        num_blocks=blocks,
        block_size=size,
        max_context=200,
        vocab_size=512,
        step_tokens=40,
        max_running=8,
        host_slots=slots,
    )
    core.costs.token_s, core.costs.block_s = (1.0, 1e-9) if seed % 2 else (1e-9, 1.0)

    assert len(random_history(core, seed)) > 30

    assert core.scheduler.preemptions > 0


@pytest.mark.parametrize(
    "want",
    [
        {"logprobs": 5},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.3},
        {"logit_bias": ((3, 8.0),), "min_tokens": 4},
        {"grammar": Grammar(kind="choice", text='["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]')},
        {"prompt_logprobs": 1},
    ],
    ids=["logprobs", "penalties", "bias", "grammar", "prompt_logprobs"],
)
def test_one_that_wants_more_changes_nothing_for_the_others(
    tiny: Path, prompts: list[list[int]], want: dict[str, object]
) -> None:
    """And it says what it says on the CPU."""

    def answers(device: str, beside: dict[str, object] | None) -> dict[str, list[int]]:
        model = load(tiny, device)
        core = make_core(model, 600, grammars=GrammarCompiler(tiny, model.info.vocab_size))
        for name, prompt in enumerate(prompts[:9]):
            how = beside if beside and name == 4 else {}
            sampling = SamplingParams(max_tokens=16, seed=name, **{"temperature": 0, **how})  # type: ignore[arg-type]
            core.add(AddRequest(request_id=str(name), session=str(name), prompt=tuple(prompt), sampling=sampling))
        return {name: tokens_of(outputs) for name, outputs in sorted(run(core).items())}

    shaped = answers("cuda", want)
    assert shaped == answers("cpu", want)
    plain = answers("cuda", None)
    assert {name: said for name, said in shaped.items() if name != "4"} == {
        name: said for name, said in plain.items() if name != "4"
    }


@pytest.mark.parametrize(("max_running", "num_blocks"), [(1, 40), (2, 1), (3, 2), (17, 40)])
def test_any_number_of_sequences_may_run(tiny: Path, max_running: int, num_blocks: int) -> None:
    """Warm-up included; a pool of one block holds a sequence of eight tokens."""
    runner = make_runner(load(tiny, "cuda"), num_blocks, 8, 0, max_running)
    runner.warm_up()
    core = EngineCore(
        runner, num_blocks=num_blocks, block_size=8, max_context=512, vocab_size=512, max_running=max_running
    )
    outputs = ask(core, [[1, 2, 3 + number] for number in range(4)], 5)

    assert [len(answers[0]) for answers in outputs.values()] == [5] * 4


def test_one_whose_logits_are_not_finite_fails_alone(tiny: Path) -> None:
    model = load(tiny, "cuda")
    core = make_core(model, 300)
    with torch.inference_mode():
        model.decoder.embedding[7] = float("nan")  # only one request ever reads it

    for name, prompt in {"good": [1, 2, 3], "bad": [1, 7, 3], "other": [4, 5]}.items():
        sampling = SamplingParams(max_tokens=8, temperature=1.0, seed=1)
        core.add(AddRequest(request_id=name, session=name, prompt=tuple(prompt), sampling=sampling))
    outputs = run(core)

    assert outputs["bad"][-1].finish_reason == "error"
    assert "not finite" in outputs["bad"][-1].message
    assert [len(tokens_of(outputs[name])) for name in ("good", "other")] == [8, 8]


def test_logits_of_float32_stay_as_the_model_gave_them(tiny: Path, prompts: list[list[int]]) -> None:
    """Log probabilities are the model's own, beside penalties and a mask that change what is drawn."""

    def logprobs(device: str) -> list[float]:
        core = make_core(load(tiny, device), 300)
        sampling = SamplingParams(
            max_tokens=12, temperature=0, seed=0, logprobs=2, repetition_penalty=2.0, bad_token_ids=(3, 4)
        )
        core.add(AddRequest(request_id="a", session="a", prompt=tuple(prompts[0]), sampling=sampling))
        return [each.logprob for output in run(core)["a"] for each in output.logprobs]

    assert logprobs("cuda") == pytest.approx(logprobs("cpu"), abs=1e-4)


def test_a_stop_token_ends_an_answer_though_the_next_step_was_on_its_way(tiny: Path, prompts: list[list[int]]) -> None:
    gpu = make_core(load(tiny, "cuda"), 300)
    whole = ask(gpu, prompts[:8], 20)
    stops = tuple({answers[0][7] for answers in whole.values()})

    cut = ask(gpu, prompts[:8], 20, stop_token_ids=stops)

    for name, (answer,) in whole.items():
        end = next((i for i, token in enumerate(answer) if token in stops), 19)
        assert cut[name] == [answer[: end + 1]]
    assert not gpu.scheduler.running
    gpu.blocks.check()


def test_greedy_text_of_the_default_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where there is no network, PAGECHAT_MODEL names its .gguf file."""
    try:
        directory = models.resolve(os.environ.get("PAGECHAT_MODEL", "smollm2"), lambda _: None)
    except models.ModelError as error:
        pytest.skip(str(error))
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    texts = [
        "The capital of France is",
        "def fibonacci(n):",
        "Once upon a time there was a small",
        "A page table maps",
        "1, 2, 3, 4,",
        "To make bread you need " * 40,
        "The quick brown fox jumps over the lazy dog. " * 20,
        "Paging is",
    ]
    prompts = [tokenizer.encode(text).ids for text in texts]
    gpu = make_core(load(directory, "cuda"), 600)
    cpu = make_core(load(directory, "cpu"), 600)

    assert ask(gpu, prompts, 48) == ask(cpu, prompts, 48)


def test_a_model_beside_another_process_takes_what_is_left(tiny: Path) -> None:
    from engine.process.memory import choose_num_blocks

    model = load(tiny, "cuda", "bfloat16")
    free, total = torch.cuda.mem_get_info()
    taken = torch.empty(int(free * 0.6), dtype=torch.uint8, device="cuda")

    blocks = choose_num_blocks(EngineConfig(model=str(tiny), step_tokens=512), model)

    assert 0 < blocks * 16 * model.kv_bytes_per_token < free - taken.numel()
    assert total > free
