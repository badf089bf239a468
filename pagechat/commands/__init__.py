"""What the commands do, one module a command. stdout is data, stderr is narration. Imports no Textual, no torch.

question.py what stands on its command line
ask.py     one question, one answer
status.py  what the daemon does now
sessions.py sessions between their turns, and who has used what
tables.py  aligned text
watch.py   telemetry as JSON lines
batch.py   a file of requests
keys.py    who may use the HTTP door
stop.py    ends the daemon
options.py the options that serve and the app share; http_options.py those of the HTTP door
exits.py   the exit codes
"""
