"""Start a process that outlives this one. `leave_orphan.py FILE`"""

import subprocess
import sys
import time
from pathlib import Path

subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(60)"],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
)
Path(sys.argv[1]).write_text("x")
time.sleep(60)
