"""The OpenAI-compatible door. Requests go through answering.py as everybody's do; here is only HTTP.

address.py    HOST:PORT, and who may listen where
server.py     uvicorn in the front's loop
app.py        the FastAPI application: routes, errors, the gate before them
gate.py       what every request passes first: host, key, sizes, a request id
service.py    what routes need of the daemon
exchange.py   the generations of one HTTP request, and its client's going
streaming.py  server-sent events
errors.py     every error in OpenAI's shape
schemas/      request bodies
routes/       one module a surface
"""
