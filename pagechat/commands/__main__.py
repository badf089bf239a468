"""`python -m pagechat.commands`: the command pagechat-daemon, for starting it without looking for it on the PATH."""

from pagechat.cli import daemon_main

if __name__ == "__main__":
    daemon_main()
