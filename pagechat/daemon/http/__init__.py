"""The OpenAI-compatible door. Requests go through answering.py as everybody's do; here is only HTTP.

address.py    HOST:PORT, and who may listen where
door.py       the door as the front sees it
server.py     uvicorn in the front's loop; burst.py sends what one step brings to many connections together
app.py        the FastAPI application: routes, errors, the gate before them
gate.py       what every request passes first: host, key, sizes, a request id
keys.py       API keys, hashed, in a file
admission.py  what may wait, and what one key may do at a time
service.py    what routes need of the daemon
call.py       one request that wants answers: let in, tokenized, checked, begun
exchange.py   its generations, and its client's going
streaming.py  server-sent events
errors.py     every error in OpenAI's shape; refusal.py is the exception
parts.py      an answer taken apart: reasoning, content, tool calls; chat_marks.py says which the template marks
logprobs.py   log probabilities as clients read them; shapes.py what objects have in common
metrics.py    /metrics under vLLM's names
access_log.py a JSON line for each request
page.html     the pool in a browser
schemas/      request bodies
routes/       one module a surface
"""
