"""`python -m engine`: the engine process, started by the front."""

import os
import sys

from engine.process.loop import main

if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: the interpreter's end would wait for the threads of torch and of the parent watch.
    os._exit(status)
