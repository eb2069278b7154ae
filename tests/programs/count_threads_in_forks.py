"""How many threads PyTorch has in forked processes. Each returns the number as its exit code.

count_threads_in_forks.py WEIGHTS
"""

import faulthandler
import json
import os
import signal
import sys

import spacy
import torch

if hasattr(signal, "SIGUSR1"):
    faulthandler.register(signal.SIGUSR1)  # The signal shows where a hang is.

torch.set_num_threads(2)
torch.ones(2000, 2000).sum()  # OpenMP starts its threads, which no child has.
nlp = spacy.blank("en")
nlp.add_pipe("sentencizer")
nlp.add_pipe("elmo", config={"model": {"weights": sys.argv[1]}})


def child(function):
    process = os.fork()
    if process == 0:
        code = 255
        try:
            code = function()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def use():
    nlp("word . " * 1000)
    return torch.get_num_threads()


def choose_afterwards():
    use()
    torch.set_num_threads(3)
    return use()


counts = {"no elmo": child(torch.get_num_threads), "first use": child(use)}
nlp("a word .")
counts["use again"] = child(use)
counts["choose afterwards"] = child(choose_afterwards)
counts["choose, and fork again"] = child(lambda: choose_afterwards() and child(use))
counts["parent"] = torch.get_num_threads()
print(json.dumps(counts))
