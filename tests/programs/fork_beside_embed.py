"""A thread is in the middle of `EmbedColumns.embed` while another one forks. The child embeds, too.

fork_beside_embed.py PIPELINE
"""

import faulthandler
import json
import os
import signal
import sys
import threading

from spacy_elmo import EmbedColumns

if hasattr(signal, "SIGUSR1"):
    faulthandler.register(signal.SIGUSR1)  # The signal shows where a hang is.

embed = EmbedColumns(sys.argv[1])
inside, forked = threading.Event(), threading.Event()


def texts():
    yield "The bank"
    inside.set()
    forked.wait()


thread = threading.Thread(target=lambda: embed.embed(texts()))
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    embed.embed(["The bank"])
    os._exit(0)
_, status = os.waitpid(child, 0)
forked.set()
thread.join()
print(json.dumps(status))
