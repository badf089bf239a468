"""What people touch: the commands, the app, the daemon's front process and the client that reaches it.

app/      the Textual app
daemon/   the front process: text, clients, supervision of the engine
commands/ what `pagechat-daemon ask`, `status` and `watch` do
bench/    pagechat-bench
client.py the one way into a daemon, for app and scripts alike
"""

__version__ = "0.1.0"
