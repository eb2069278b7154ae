"""Parts of a call in threads of their own."""

from __future__ import annotations

import threading
import time

import numpy
import pytest
import torch

from spacy_elmo.parallel import run_side_by_side

from .conftest import random_bilm

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def two_threads(set_num_threads):
    set_num_threads(2)


def test_a_bilm_runs_in_inference_mode():
    bilm, arguments = random_bilm(), (["the", "bank"], numpy.array([0, 1, 0]), [2, 1])
    expected = bilm(*arguments)
    with torch.inference_mode():
        assert torch.equal(bilm(*arguments), expected)


def test_results_are_in_order():
    slow, fast = lambda: time.sleep(0.05), lambda: "fast"
    assert run_side_by_side([slow, fast, fast], CPU) == [None, "fast", "fast"]


def test_threads_of_an_earlier_number_end():
    def run(n_threads):
        torch.set_num_threads(n_threads)
        run_side_by_side([lambda: None] * 2, CPU)
        return {x for x in threading.enumerate() if x.name.startswith("spacy-elmo-parts")}

    earlier = run(3)
    run(4), run(5)
    for thread in earlier:
        thread.join(10)
    assert len(earlier) >= 3 and not any(thread.is_alive() for thread in earlier)


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_waits_for_the_others(failing):
    """They still write to tensors, and a fork would find PyTorch's locks locked."""
    started, ended = threading.Event(), []

    def fail():
        assert started.wait(60)
        raise MemoryError("no memory")

    def work():
        started.set()
        time.sleep(0.2)
        ended.append(True)

    tasks = [work, work]
    tasks[failing] = fail
    with pytest.raises(MemoryError, match="no memory"):
        run_side_by_side(tasks, CPU)
    assert ended
