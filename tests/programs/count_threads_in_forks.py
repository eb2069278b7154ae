"""How many threads PyTorch has in forked processes. Each returns the number as its exit code.

count_threads_in_forks.py WEIGHTS
"""

import faulthandler
import json
import os
import signal
import sys
import threading

import spacy
import torch

if hasattr(signal, "SIGUSR1"):
    faulthandler.register(signal.SIGUSR1)  # The signal shows where a hang is.

torch.set_num_threads(2)
torch.ones(2000, 2000).sum()  # OpenMP starts its threads, which no child has.

TEXT = "word . " * 1000


def pipeline():
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("elmo", config={"model": {"weights": sys.argv[1]}})
    return nlp


def child(function):
    process = os.fork()
    if process == 0:
        code = 255
        try:
            code = function()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def first_use():
    pipeline()(TEXT)
    return torch.get_num_threads()


def use_again():
    nlp(TEXT)
    return torch.get_num_threads()


def use_in_a_thread_first():
    thread = threading.Thread(target=nlp, args=(TEXT,))
    thread.start()
    thread.join()
    return use_again()


def saving():
    nlp.to_bytes()
    return torch.get_num_threads()


def choose_afterwards():
    use_again()
    torch.set_num_threads(3)
    nlp("a word .")
    return torch.get_num_threads()


nlp = pipeline()
counts = {"no elmo before": child(torch.get_num_threads), "first use": child(first_use)}
nlp(TEXT)
counts["use again"] = child(use_again)
counts["use in a thread first"] = child(use_in_a_thread_first)
counts["a child's child"] = child(lambda: child(use_again))
counts["choose afterwards"] = child(choose_afterwards)
counts["choose, and fork again"] = child(lambda: choose_afterwards() and child(use_again))
counts["saving"] = child(saving)
counts["no elmo after"] = child(torch.get_num_threads)
counts["parent"] = torch.get_num_threads()
print(json.dumps(counts))
