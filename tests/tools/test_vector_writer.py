"""What cannot be seen from outside `spacy elmo embed` (see `tests/cli/test_embed.py`)."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from spacy_elmo.inference.session import TypeCache
from spacy_elmo.tools.vector_writer import VectorWriter

from ..conftest import elmo_pipeline


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_no_other_thread_forks_while_the_cache_is_cleared(
    weights_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A child would inherit the lock of the cache as it is."""
    nlp = elmo_pipeline(weights_folder)
    has_forked = threading.Event()

    def fork():
        if pid := os.fork():
            os.waitpid(pid, 0)
            has_forked.set()
        else:
            os._exit(0)

    thread = threading.Thread(target=fork)
    clear = TypeCache.clear

    def clear_slowly(cache: TypeCache):
        if thread.ident is None:
            thread.start()
            assert not has_forked.wait(0.2)
        clear(cache)

    writer = VectorWriter(tmp_path / "out.npz", nlp, nlp.get_pipe("elmo"))
    monkeypatch.setattr(TypeCache, "clear", clear_slowly)
    assert list(writer.write([nlp.make_doc("the bank")])) == [2]
    thread.join()
    assert has_forked.is_set()
