"""The cache of token encodings."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spacy_elmo.inference.session import TypeCache

WIDTH = 4


class Encoder:
    """Encodes a text as numbers that only it has, and remembers what it was asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, texts):
        self.asked.extend(texts)
        return torch.stack([encoding(text) for text in texts])


def encoding(text):
    return torch.tensor([float(int(text[1:])) + i / 7 for i in range(WIDTH)])


def expected(texts):
    return torch.stack([encoding(text) for text in texts])


def words(*numbers):
    return [f"w{number:03}" for number in numbers]


def entry_bytes():
    """What one entry costs, found by storing one."""
    cache = TypeCache(1 << 20)
    cache.lookup(words(0), Encoder())
    return cache.n_bytes


@pytest.fixture
def encode():
    return Encoder()


def room_for(n_entries):
    return TypeCache(n_entries * entry_bytes())


def test_a_type_is_encoded_once(encode):
    cache = TypeCache(1 << 20)
    cache.lookup(words(1, 2), encode)
    assert torch.equal(cache.lookup(words(3, 2, 1), encode), expected(words(3, 2, 1)))
    assert encode.asked == words(1, 2, 3)


def test_the_bound_in_bytes_holds_after_every_call(encode):
    cache = room_for(3)
    for i in range(10):
        cache.lookup(words(i, i + 100), encode)
        assert 0 < cache.n_bytes <= cache.max_bytes
        assert cache.n_bytes == len(cache) * entry_bytes()


def test_a_text_too_large_for_the_cache_displaces_nothing(encode):
    cache = room_for(2)
    cache.lookup(words(1, 2), encode)
    long = "w" + "0" * 2_000 + "7"
    assert torch.equal(cache.lookup([long], encode)[0], encoding(long))
    cache.lookup(words(1, 2), pytest.fail)


@settings(deadline=None, max_examples=100)
@given(
    st.integers(0, 8),
    st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=12, unique=True), max_size=8),
)
def test_values_are_right_whatever_came_before(room, calls):
    cache, encode = room_for(room), Encoder()
    for numbers in calls:
        texts = words(*numbers)
        assert torch.equal(cache.lookup(texts, encode), expected(texts))
        assert len(cache) <= room


def test_threads_that_share_a_small_cache_get_their_own_values():
    cache = room_for(5)

    def work(seed):
        numbers = random.Random(seed)
        for _ in range(150):
            texts = words(*numbers.sample(range(12), numbers.randint(1, 8)))
            vectors = cache.lookup(texts, Encoder())
            assert torch.equal(vectors, expected(texts))
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))
    assert cache.n_bytes == len(cache) * entry_bytes() <= cache.max_bytes
