"""What `pagechat-bench` computes and measures, one module a command. Draws no screen and needs no Textual.

capacity.py  how many requests fit in a memory, contiguous against paged
shape.py     the few dimensions of a model that decide it, read from a Hugging Face config
presets.py   those dimensions for models people name
simulate.py  a trace through the block pool and scheduler, without a model, under several policies
               simulation.py  replay.py  outcome.py  traces.py  sharing.py  show.py  plot.py  parallel.py
engine.py    output tokens per second of the real engine in this process: rounds.py  profile.py
context.py   time of a decode step on the CPU by number of chats and context length
quality.py   perplexity and next-token agreement of each weights dtype, on passage.txt
               loading.py  the model these run
load.py      the same requests to OpenAI-compatible servers, by the client in sse.py
tune.py      which block size suits a trace
pool.py      what the bookkeeping of a step costs
kernels.py   each GPU kernel against the bytes it must move
machine.py   what a figure was measured on
"""
