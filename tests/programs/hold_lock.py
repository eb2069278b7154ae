"""Hold a lock until this process is killed: `hold_lock.py FILE`. With `--child`, a child that ends
with the standard input inherits it."""

import subprocess
import sys
import time
from pathlib import Path

from spacy_elmo.files import exclusive_lock

with exclusive_lock(Path(sys.argv[1]), "it is in use") as held:
    if "--child" in sys.argv:
        subprocess.Popen(["cat"], pass_fds=held)
    print("locked", flush=True)
    time.sleep(600)
