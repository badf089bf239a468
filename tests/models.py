"""Small random models on disk, in Hugging Face layout, with a real tokenizer: for tests that need no sensible text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Token ids 0, 1 and 2."""

VOCAB = 512

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def tiny_llama(tmp_path: Path, **overrides: Any) -> Path:
    """A random Llama of some 100,000 parameters in float32 and its tokenizer, in a new folder of `tmp_path`.

    `overrides` are fields of transformers' config. `model_type` picks another family, `name` the folder's name,
    `seed` the weights.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    directory = tmp_path / overrides.pop("name", "tiny-llama")
    seed = overrides.pop("seed", 0)
    config = AutoConfig.for_model(overrides.pop("model_type", "llama"), **{**_SIZES, **overrides})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            # Larger than a fresh initialisation: logits far enough apart that rounding does not change the best one.
            torch.nn.init.normal_(parameter, mean=1.0 if parameter.dim() == 1 else 0.0, std=0.15)
    model.save_pretrained(directory)
    write_tokenizer(directory)
    generation = {"bos_token_id": 1, "eos_token_id": [2], "pad_token_id": 0}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


def write_tokenizer(directory: Path) -> None:
    """tokenizer.json and tokenizer_config.json: byte-level BPE of VOCAB entries trained on a few sentences, ChatML."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    if tokenizer.get_vocab_size() != VOCAB:
        raise AssertionError(f"the sentences give {tokenizer.get_vocab_size()} tokens, not {VOCAB}")
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[1],
        "eos_token": SPECIALS[2],
        "pad_token": SPECIALS[0],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": _SIZES["max_position_embeddings"],
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


_SENTENCES = [
    "A page table maps the pages of a process to the frames of memory, and a block table does the same for tokens.",
    "The operating system copies a shared page when one of its owners writes to it: copy on write.",
    "When nobody needs a frame, its content stays cached until somebody else asks for memory.",
    "You are a helpful assistant. The user asks a question and the assistant answers it, one token after the other.",
    "def step(self): for sequence in self.running: sequence.append(self.sample(sequence)) return self.running",
    "Every sequence has a list of blocks; the last block is only partly filled, the others are full.",
    "The scheduler takes waiting requests while there is memory, and preempts the newest when there is none.",
    "What is a cache? A place where things that were needed once are kept, because they may be needed again.",
    "Numbers: 0 1 2 3 4 5 6 7 8 9 10 16 32 64 128 256 512 1024; punctuation: . , ; : ! ? ( ) [ ] { } < > | * & ^ % $ #",
]


def add_token(directory: Path, content: str, *, special: bool) -> int:
    """Makes the last entry of the vocabulary that is none yet an added token, as Qwen's `<tool_call>` is. Returns its
    id."""
    file = directory / "tokenizer.json"
    description = json.loads(file.read_text())
    added = {token["id"] for token in description["added_tokens"]}
    vocab: dict[str, int] = description["model"]["vocab"]
    old, number = max(((text, id_) for text, id_ in vocab.items() if id_ not in added), key=lambda entry: entry[1])
    del vocab[old]
    merges = description["model"]["merges"]
    description["model"]["merges"] = [pair for pair in merges if not _needs(pair, old)]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    description["added_tokens"].append({"id": number, "content": content, **plain, "special": special})
    vocab[content] = number
    file.write_text(json.dumps(description))
    return number


def _needs(pair: str | list[str], token: str) -> bool:
    left, right = pair.split(" ") if isinstance(pair, str) else pair
    return token in (left, right, left + right)
