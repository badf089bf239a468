"""Starting the app: the short way in is the long one, only sooner, and what it never needs is never imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from pagechat import settings
from pagechat.start import NO_OPTIONS
from tests.daemons import ROOT

HEAVY = {"torch", "numpy", "transformers", "tokenizers", "fastapi", "uvicorn", "pydantic", "jinja2", "textual_serve"}
"""Of the daemon, or of options: half a second of imports and more."""

OPENS = """
import json, sys
import pagechat.app
pagechat.app.run = lambda **given: print("OPENS", json.dumps(given), "typer" in sys.modules) or 7
sys.argv = ["pagechat", *{arguments!r}]
from {module} import {main}
{main}()
"""


def plain_environment() -> dict[str, str]:
    """Without variables that may be options: the tests set some for other programs."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PAGECHAT_") or name in NO_OPTIONS}


def opens(module: str, main: str, *arguments: str, **variables: str) -> tuple[dict[str, object], bool, int | None]:
    """(what the app is opened with, whether options were parsed for it, the exit code), on a terminal."""
    environment = plain_environment() | variables
    environment.pop("PAGECHAT_RUN_DIR")  # its value is found in the end by both, earlier by the long way
    code = OPENS.format(arguments=arguments, module=module, main=main)
    child = pexpect.spawn(sys.executable, ["-c", code], env=environment, cwd=ROOT, timeout=30, encoding="utf-8")
    child.expect(r"OPENS (\{.*\}) (True|False)")
    given, parsed = child.match.groups()
    child.expect(pexpect.EOF)
    child.close()
    return json.loads(given), parsed == "True", child.exitstatus


def test_one_word_opens_the_same_app_without_parsing_options() -> None:
    short, long = opens("pagechat.start", "main"), opens("pagechat.cli", "app_main")
    assert short == (long[0], False, 7)
    assert long[1:] == (True, 7)


def test_options_of_the_command_line_the_environment_and_the_file_still_count() -> None:
    assert opens("pagechat.start", "main", "--theme", "paper")[:2] == (
        {"run_dir": None, "daemon_args": [], "theme": "paper"},
        True,
    )
    assert opens("pagechat.start", "main", PAGECHAT_THEME="ember")[0]["theme"] == "ember"
    file = settings.default_path()
    file.parent.mkdir(parents=True)
    file.write_text('theme = "fjord"\n')
    assert opens("pagechat.start", "main")[0]["theme"] == "fjord"


def test_without_a_terminal_it_says_what_to_use_instead() -> None:
    code = "from pagechat.start import main; import sys; sys.argv = ['pagechat']; main()"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, input="")
    assert (result.returncode, result.stdout) == (2, "")
    assert "pagechat-daemon ask" in result.stderr


RUNS = """
import atexit, sys
from pathlib import Path
file, sys.argv[1:] = Path(sys.argv[1]), []
atexit.register(lambda: file.write_text(" ".join(module for module in sys.modules if "." not in module)))
from pagechat.start import main
main()
"""


@pytest.mark.parametrize("asks", [False, True], ids=["a start", "a start and an answer"])
def test_the_app_never_imports_what_belongs_to_the_daemon(asks: bool, shared_daemon: Path, tmp_path: Path) -> None:
    app = pexpect.spawn(
        sys.executable,
        ["-c", RUNS, str(tmp_path / "modules")],
        env=plain_environment() | {"TERM": "xterm-256color"},
        dimensions=(36, 120),
        cwd=ROOT,
        timeout=30,
        encoding="utf-8",
    )
    app.expect("rite a message")
    app.expect("tok/s")
    if asks:
        app.send("hello\r")
        app.expect("first after")  # the facts below a whole answer
    app.send("\x11")
    app.expect(pexpect.EOF)
    app.close()
    loaded = set((tmp_path / "modules").read_text().split())
    assert {"textual", "zmq"} <= loaded  # it was the app
    assert loaded & HEAVY == set()
    assert loaded & {"typer", "markdown_it", "pygments"} <= ({"markdown_it", "pygments"} if asks else set())
