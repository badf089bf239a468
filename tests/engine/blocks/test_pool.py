"""The block pool: references, the free and cached list, content."""

import pytest

from engine.blocks.observe.events import EventLog
from engine.blocks.pool import BlockPool, OutOfBlocks


def make_pool(num_blocks: int) -> BlockPool:
    return BlockPool(num_blocks, EventLog())


def test_blocks_are_taken_in_order_and_never_the_null_block() -> None:
    pool = make_pool(3)
    assert pool.take(3) == [1, 2, 3]
    assert (pool.available, pool.free, pool.cached) == (0, 0, 0)
    with pytest.raises(OutOfBlocks):
        pool.take(1)


def test_a_block_without_content_is_taken_again_first() -> None:
    pool = make_pool(3)
    [first] = pool.take(1)
    pool.release([first])
    assert pool.take(1) == [first]


def test_content_outlives_its_owner_and_is_found_by_hash_and_tokens() -> None:
    pool = make_pool(2)
    [block] = pool.take(1)
    pool.register(block, b"h", (1, 2))
    pool.release([block])
    assert (pool.free, pool.cached) == (1, 1)
    assert pool.find(b"h", (1, 2)) == block
    assert pool.find(b"h", (1, 3)) is None, "a hash collision is not a hit"
    assert pool.acquire(block) is True
    assert (pool.cached, pool.refs[block]) == (0, 1)


def test_cached_blocks_are_evicted_only_without_free_ones_least_recently_used_first() -> None:
    pool = make_pool(4)
    blocks = pool.take(3)
    for name, block in zip((b"a", b"b", b"c"), blocks, strict=True):
        pool.register(block, name, (block,))
        pool.release([block])
    pool.acquire(blocks[0])
    pool.release([blocks[0]])  # used again: now the newest
    assert pool.take(3) == [4, blocks[1], blocks[2]]
    assert pool.find(b"a", (blocks[0],)) == blocks[0]
    assert pool.find(b"b", (blocks[1],)) is None


def test_the_first_block_with_a_content_keeps_the_name() -> None:
    pool = make_pool(2)
    first, second = pool.take(2)
    pool.register(first, b"h", (1,))
    pool.register(second, b"h", (1,))
    assert pool.find(b"h", (1,)) == first
    assert not pool.addressable(second)
    pool.check()


def test_releasing_twice_is_an_error_not_a_second_free_block() -> None:
    pool = make_pool(2)
    [block] = pool.take(1)
    pool.release([block])
    with pytest.raises(ValueError, match="more often"):
        pool.release([block])
    assert pool.available == 2
    pool.check()
