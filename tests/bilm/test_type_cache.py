"""The cache of token encodings."""

import copy
import ctypes
import pickle
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spacy_elmo.bilm.type_cache import TypeCache

from ..conftest import max_difference, random_bilm

WIDTH = 4


class Encoder:
    """Encodes a text as numbers that only it has, and remembers what it was asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, texts):
        self.asked.extend(texts)
        return torch.stack([encoding(text) for text in texts])


def encoding(text):
    return torch.tensor([float(int(text[1:])) + i / 8 for i in range(WIDTH)])


def expected(texts):
    return torch.stack([encoding(text) for text in texts])


def words(*numbers):
    return [f"w{number:03}" for number in numbers]


def entry_bytes():
    """What one entry costs, found by storing one."""
    cache = TypeCache(1 << 20)
    cache.lookup(words(0), "key", Encoder())
    return cache.n_bytes


@pytest.fixture
def encode():
    return Encoder()


def room_for(n_entries):
    return TypeCache(n_entries * entry_bytes())


def test_a_type_is_encoded_once(encode):
    cache = TypeCache(1 << 20)
    cache.lookup(words(1, 2), "key", encode)
    assert torch.equal(cache.lookup(words(3, 2, 1), "key", encode), expected(words(3, 2, 1)))
    assert encode.asked == words(1, 2, 3)


def test_all_hits_do_not_call_the_encoder(encode):
    cache = TypeCache(1 << 20)
    cache.lookup(words(1, 2), "key", encode)
    assert torch.equal(cache.lookup(words(2), "key", pytest.fail), expected(words(2)))


def test_an_entry_costs_at_least_its_vector_and_its_text():
    assert entry_bytes() > WIDTH * 4 + sys.getsizeof("w000")


def test_the_bound_in_bytes_holds_after_every_call(encode):
    cache = room_for(3)
    for i in range(10):
        cache.lookup(words(i, i + 100), "key", encode)
        assert cache.n_bytes <= cache.max_bytes
        assert cache.n_bytes == len(cache) * entry_bytes()
    assert len(cache) == 3


def test_the_least_recently_used_type_goes_first(encode):
    cache = room_for(3)
    cache.lookup(words(1, 2, 3), "key", encode)
    cache.lookup(words(1), "key", encode)
    cache.lookup(words(4), "key", encode)  # Takes the place of 2.
    encode.asked.clear()
    cache.lookup(words(1, 3, 4), "key", encode)
    assert encode.asked == []
    cache.lookup(words(2), "key", encode)
    assert encode.asked == words(2)


def test_more_types_in_one_call_than_there_is_room_for(encode):
    cache = room_for(3)
    many = words(*range(10))
    assert torch.equal(cache.lookup(many, "key", encode), expected(many))
    encode.asked.clear()
    assert torch.equal(cache.lookup(many, "key", encode), expected(many))
    assert encode.asked == words(*range(7))


def test_hits_that_are_evicted_by_the_misses_of_their_call_are_still_right(encode):
    cache = room_for(2)
    cache.lookup(words(1, 2), "key", encode)
    mixed = words(3, 1, 4, 2, 5)
    assert torch.equal(cache.lookup(mixed, "key", encode), expected(mixed))
    assert torch.equal(cache.lookup(words(4, 5), "key", pytest.fail), expected(words(4, 5)))


def test_a_result_is_not_changed_by_later_calls(encode):
    cache = room_for(2)
    cache.lookup(words(1, 2), "key", encode)
    first = cache.lookup(words(1, 2), "key", encode)
    cache.lookup(words(3, 4), "key", encode)
    assert torch.equal(first, expected(words(1, 2)))


def test_changing_a_result_changes_no_entry(encode):
    cache = TypeCache(1 << 20)
    cache.lookup(words(1), "key", encode)
    cache.lookup(words(1), "key", encode).zero_()
    assert torch.equal(cache.lookup(words(1), "key", encode), expected(words(1)))


@settings(deadline=None, max_examples=100)
@given(
    st.integers(0, 8),
    st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=12, unique=True), max_size=8),
)
def test_values_are_right_whatever_came_before(room, calls):
    cache, encode = room_for(room), Encoder()
    for numbers in calls:
        texts = words(*numbers)
        assert torch.equal(cache.lookup(texts, "key", encode), expected(texts))
        assert len(cache) <= room


def test_zero_bytes_keep_nothing(encode):
    cache = TypeCache(0)
    for _ in range(2):
        assert torch.equal(cache.lookup(words(1, 2), "key", encode), expected(words(1, 2)))
    assert encode.asked == words(1, 2, 1, 2)
    assert len(cache) == cache.n_bytes == 0


def test_a_text_too_large_for_the_cache_displaces_nothing(encode):
    cache = room_for(2)
    cache.lookup(words(1, 2), "key", encode)
    long = "w" + "0" * 2_000 + "7"
    assert torch.equal(cache.lookup([long], "key", encode)[0], encoding(long))
    cache.lookup(words(1, 2), "key", pytest.fail)


def test_the_size_of_a_text_may_change_while_it_is_kept():
    """CPython keeps the UTF-8 of a text with it, once somebody has asked for it."""

    def zeros(texts):
        return torch.zeros(len(texts), WIDTH)

    cache, other = room_for(4), room_for(4)
    texts = [letter * 8 for letter in "äöü"]
    cache.lookup(texts, "key", zeros)
    for text in texts:
        before = sys.getsizeof(text)
        ctypes.pythonapi.PyUnicode_AsUTF8AndSize(ctypes.py_object(text), None)
        assert sys.getsizeof(text) > before
    cache.lookup(words(*range(10)), "key", zeros)
    other.lookup(words(*range(10)), "key", zeros)
    assert (len(cache), cache.n_bytes) == (len(other), other.n_bytes)


def test_a_new_key_empties_the_cache(encode):
    cache = TypeCache(1 << 20)
    cache.lookup(words(1, 2), "old", encode)
    cache.lookup(words(1), "new", encode)
    assert encode.asked == words(1, 2, 1)
    assert len(cache) == 1


def test_encodings_of_weights_that_changed_meanwhile_are_not_kept(encode):
    cache = TypeCache(1 << 20)

    def slow(texts):
        cache.lookup(words(9), "new", encode)
        return encode(texts)

    cache.lookup(words(1), "old", slow)
    encode.asked.clear()
    cache.lookup(words(9, 1), "new", encode)
    assert encode.asked == words(1)


def test_clear(encode):
    cache = TypeCache(1 << 20)
    cache.lookup(words(1), "key", encode)
    cache.clear()
    assert len(cache) == cache.n_bytes == 0
    cache.lookup(words(1), "key", encode)
    assert encode.asked == words(1, 1)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_is_empty_but_has_the_same_bound(duplicate, encode):
    cache = TypeCache(12_345)
    cache.lookup(words(1), "key", encode)
    other = duplicate(cache)
    assert (len(other), other.n_bytes, other.max_bytes) == (0, 0, 12_345)
    assert len(cache) == 1


def test_threads_that_share_a_small_cache_get_their_own_values():
    cache = room_for(5)

    def work(seed):
        numbers = random.Random(seed)
        for _ in range(150):
            texts = words(*numbers.sample(range(12), numbers.randint(1, 8)))
            found = cache.lookup(texts, "key", Encoder())
            assert torch.equal(found, expected(texts))
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))
    assert cache.n_bytes == len(cache) * entry_bytes() <= cache.max_bytes


def test_threads_that_share_a_bilm_get_what_each_gets_alone():
    bilm, alone = random_bilm(), random_bilm()
    bilm.type_cache.max_bytes = 2000
    sentences = [[f"word{(i * j) % 11}" for j in range(1, i % 5 + 2)] for i in range(24)]
    reference = [alone.embed([tokens])[0] for tokens in sentences]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda tokens: bilm.embed([tokens])[0], sentences))
    assert all(max_difference(x, y) <= 1e-6 for x, y in zip(found, reference))
