"""Block tables: on demand, shared, copied on write."""

from engine.blocks.paged import PagedBlocks
from engine.protocol import SamplingParams
from engine.requests.sequence import Sequence


def make_sequence(number: int, tokens: list[int], salt: bytes = b"") -> Sequence:
    return Sequence(number, str(number), "chat", tokens, len(tokens), SamplingParams(max_tokens=9, seed=0), salt)


def compute(blocks: PagedBlocks, sequence: Sequence) -> None:
    """Admit, make room for all tokens and publish what is full."""
    blocks.admit(sequence, blocks.match(sequence))
    start = sequence.computed
    assert blocks.grow(sequence, len(sequence.tokens) - start)
    blocks.publish(sequence, start)


def test_a_sequence_takes_blocks_as_its_tokens_need_them() -> None:
    blocks = PagedBlocks(8, block_size=4)
    sequence = make_sequence(1, [7] * 9)
    blocks.admit(sequence, blocks.match(sequence))
    assert sequence.table == []
    for tokens, expected in ((4, 1), (1, 2), (3, 2), (1, 3)):
        assert blocks.grow(sequence, tokens)
        assert len(sequence.table) == expected
    blocks.check()


def test_growing_without_memory_changes_nothing() -> None:
    blocks = PagedBlocks(2, block_size=4)
    sequence = make_sequence(1, [7] * 20)
    blocks.admit(sequence, blocks.match(sequence))
    assert not blocks.grow(sequence, 9)
    assert (sequence.table, sequence.computed, blocks.pool.available) == ([], 0, 2)


def test_full_blocks_of_an_equal_prefix_are_shared_and_one_token_is_left_to_compute() -> None:
    blocks = PagedBlocks(8, block_size=4)
    first = make_sequence(1, [1, 2, 3, 4, 5, 6, 7, 8])
    compute(blocks, first)
    second = make_sequence(2, [1, 2, 3, 4, 5, 6, 7, 8])
    blocks.admit(second, blocks.match(second))
    assert second.table == first.table[:1], "the second block holds the last token, which is computed again"
    assert second.computed == 4
    blocks.check()


def test_a_salt_keeps_equal_prompts_apart() -> None:
    blocks = PagedBlocks(8, block_size=4)
    compute(blocks, make_sequence(1, [1] * 9))
    assert blocks.match(make_sequence(2, [1] * 9, salt=b"other tenant")).blocks == []
    assert len(blocks.match(make_sequence(3, [1] * 9)).blocks) == 2


def test_a_block_is_found_only_behind_the_same_prefix() -> None:
    blocks = PagedBlocks(8, block_size=4)
    compute(blocks, make_sequence(1, [1, 1, 1, 1, 2, 2, 2, 2, 3]))
    assert blocks.match(make_sequence(2, [9, 9, 9, 9, 2, 2, 2, 2, 3])).blocks == []


def test_the_tail_of_a_cached_sequence_is_evicted_before_its_head() -> None:
    blocks = PagedBlocks(3, block_size=4)
    first = make_sequence(1, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3])
    compute(blocks, first)
    blocks.release(first)
    other = make_sequence(2, [8, 8])
    compute(blocks, other)
    assert len(blocks.match(make_sequence(3, [*[1] * 4, *[2] * 4, *[3] * 4, 9])).blocks) == 2


def test_a_fork_shares_every_block_and_the_first_writer_copies_the_half_filled_one() -> None:
    blocks = PagedBlocks(8, block_size=4)
    parent = make_sequence(1, [1, 2, 3, 4, 5, 6])
    compute(blocks, parent)
    child = make_sequence(2, list(parent.tokens))
    blocks.fork(parent, child, parent.computed)
    assert child.table == parent.table
    assert blocks.pool.available == 6, "a fork takes no block"

    shared_tail = parent.table[1]
    assert blocks.grow(child, 1)
    assert blocks.take_moves().copies == [(shared_tail, child.table[1])]
    assert child.table[0] == parent.table[0]
    assert child.table[1] != shared_tail
    assert blocks.grow(parent, 1)
    assert blocks.take_moves().copies == [], "the last owner writes in place"
    blocks.check()


def test_a_copy_is_forgotten_when_its_sequence_is_released_first() -> None:
    blocks = PagedBlocks(8, block_size=4)
    parent = make_sequence(1, [1, 2, 3, 4, 5, 6])
    compute(blocks, parent)
    child = make_sequence(2, list(parent.tokens))
    blocks.fork(parent, child, parent.computed)
    assert blocks.grow(child, 1)
    blocks.release(child)
    assert blocks.take_moves().copies == []
    blocks.check()
