"""Makes docs/pagechat.cast: half a minute of the real app on a real engine, for `asciinema play docs/pagechat.cast`.

    python docs/recording.py [OUT.cast]

Two chats ask at the same time, one is forked, the map shows whose blocks are whose. Runs in folders of its own; no
daemon or history of the user is touched. The file is asciicast v2 (https://docs.asciinema.org/manual/asciicast/v2/).
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

COLUMNS, ROWS = 110, 32
FRAME_S = 0.12
"""What comes within this time is one event: the file stays small."""
STEPS: list[tuple[float, str]] = [
    (2.0, "Write a long story about a page table that wanted to travel."),
    (0.6, "\r"),
    (3.0, "\x0e"),  # ctrl+n: another chat
    (0.5, "Write a long story about two programs that share one page of memory."),
    (0.6, "\r"),
    (5.0, "\x1b1"),  # alt+1: the first one again
    (2.0, "\x1bOR"),  # f3: the map
    (1.0, "\x1b[C"),
    (1.0, "2"),  # a block, and the text in it
    (3.0, "4"),  # paging against reservation
    (3.0, "\x1bOR"),
    (1.0, "\x1b[1;3A"),  # alt+up: the last message
    (1.0, "f"),  # forked: its blocks are shared
    (1.0, "Tell it otherwise, as a poem."),
    (0.6, "\r"),
    (4.0, "\x1bOR"),
    (0.5, "6"),  # the forks
    (4.0, "\x11"),  # ctrl+q
    (1.0, "y"),
]
"""(seconds to wait, keys to press then)"""


def record(out: Path) -> None:
    """Open the app on a terminal, press the keys of `STEPS`, write down what it draws and when."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    app = subprocess.Popen(
        [sys.executable, "-c", "from pagechat.start import main; main()"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm-256color", "COLORTERM": "", "LANG": "C.UTF-8"},  # 256 colours: a smaller file
        start_new_session=True,
    )
    os.close(theirs)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    events: list[list[object]] = []
    began = time.monotonic()
    for wait, keys in STEPS:
        deadline = time.monotonic() + wait
        while (left := deadline - time.monotonic()) > 0:
            drawn = read_for(ours, min(FRAME_S, left))
            if drawn:
                events.append([round(time.monotonic() - began, 2), "o", decoder.decode(drawn)])
        os.write(ours, keys.encode())
    while app.poll() is None:
        read_for(ours, FRAME_S)
    os.close(ours)
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "pagechat"}
    out.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in [header, *events]), "utf-8")


def read_for(terminal: int, seconds: float) -> bytes:
    """All that is drawn within this time."""
    drawn = b""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            try:
                drawn += os.read(terminal, 1 << 16)
            except OSError:  # the app has ended
                break
    return drawn


def main(out: Path) -> None:
    from pagechat.client import EngineClient
    from pagechat.daemon.launch import ensure_daemon

    daemon = ensure_daemon(None, ["--num-blocks", "432", "--no-http"])
    assert daemon is not None, "the folder is new"
    try:
        with EngineClient.connect() as client:
            while client.status().state != "ready":
                time.sleep(0.2)
        record(out)
    finally:
        daemon.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="pc-", dir="/tmp") as folder:
        for name, place in (("PAGECHAT_RUN_DIR", "run"), ("PAGECHAT_DATA_DIR", "data"), ("XDG_CONFIG_HOME", "config")):
            os.environ[name] = str(Path(folder) / place)
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pagechat.cast"))
