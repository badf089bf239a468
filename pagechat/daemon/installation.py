"""How this very installation of pagechat starts another Python process of its own.

`-P` keeps the current directory off the import path, so a folder named "engine" where the user happens to stand is
never taken for ours; a source tree that is not installed goes on PYTHONPATH instead.
"""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path

import engine


def module_command(module: str) -> list[str]:
    """The command that runs one of our modules."""
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """This process's environment, with the folder that holds our packages on the path where it must be."""
    variables = dict(os.environ)
    root = str(Path(engine.__path__[0]).resolve().parent)
    if root not in {str(Path(folder).resolve()) for folder in site.getsitepackages()}:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [root, variables.get("PYTHONPATH")]))
    return variables
