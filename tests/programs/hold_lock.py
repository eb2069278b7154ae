"""Hold a lock until this process is killed. `hold_lock.py FILE`"""

import sys
import time
from pathlib import Path

from spacy_elmo.files import exclusive_lock

with exclusive_lock(Path(sys.argv[1]), "it is in use"):
    print("locked", flush=True)
    time.sleep(600)
