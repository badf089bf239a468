"""The front process: clients on one side, the engine process on the other, text in between. No tensor, no screen.

serve.py           the process: lock, signals, narration
front.py           joins the parts below, and speaks with ZeroMQ clients
answering.py       from what somebody asks to the answer's text, whichever door it came through
generation.py      what a request wants
observer.py        who counts requests
http/              the OpenAI-compatible door
greeting.py        the first words with a client, and what is said to a bad frame
doors.py           the sockets that clients reach
requests.py        the requests in flight
supervisor.py      keeps an engine running
engine_process.py  one engine process: sockets, pipe, log
sessions.py        what clients ask about sessions, and who has used what
misses.py          why a turn missed the cache, in words
pool_watch.py      the pool as `status` shows it
text.py            a model's folder: tokenizer, template, defaults
template.py        messages to the prompt's text, in the sandbox
prompt.py          that text to tokens
answer.py          tokens to the answer's text, stop strings
narrate.py         what the process says on stderr
installation.py    how a process of ours is started
launch.py          starts a daemon for an app that found none
"""
