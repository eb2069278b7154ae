"""Append to a file until it has 400 bytes. `count.py FILE`"""

import sys
import time
from pathlib import Path

path = Path(sys.argv[1])
while (path.stat().st_size if path.exists() else 0) < 400:
    with path.open("a") as file:
        file.write("x")
    time.sleep(0.001)
print("done")
