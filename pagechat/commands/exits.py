"""Exit codes of the commands (the help texts say the same), and the error that ends one."""

from __future__ import annotations

import typer

OK = 0
FAILED = 1
USAGE = 2
NO_DAEMON = 3
INTERRUPTED = 130
CLOSED_PIPE = 141
"""The reader of stdout has gone, as for a program that SIGPIPE ended."""


class CommandError(typer.TyperException):
    """Ends the command: one line on stderr, and an exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
