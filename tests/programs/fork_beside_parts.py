"""Fork while one thread waits for parts of its call, and all that run tasks wait for the fork."""

import json
import os
import threading
import time

import torch

from spacy_elmo.bilm import forking
from spacy_elmo.bilm.forking import no_fork
from spacy_elmo.bilm.threads import run_side_by_side, start

CPU = torch.device("cpu")
torch.set_num_threads(2)
beginning, fork_waits = threading.Event(), threading.Event()
results = []


def task():
    fork_waits.wait()
    with no_fork():
        return "task"


def first_part():
    beginning.set()
    fork_waits.wait()
    results.extend(run_side_by_side([lambda: "part"] * 2, CPU))


def call():
    with no_fork():
        first_part()


def fork():
    child = os.fork()
    if not child:
        os._exit(0)
    results.append("forked" if os.waitpid(child, 0)[1] == 0 else "failed")


waits = [start(task, CPU) for _ in range(2)]
threads = [threading.Thread(target=call)]
threads[0].start()
beginning.wait()
threads.append(threading.Thread(target=fork))
threads[1].start()
while not forking._forking:
    time.sleep(0.01)
fork_waits.set()
for thread in threads:
    thread.join()
results.extend(wait() for wait in waits)
print(json.dumps(sorted(results)))
