"""The paged KV cache as bookkeeping: which block holds what, and who owns it. No tensor lives here.

pool.py    physical blocks: reference counts, free and cached list, content index
paged.py   block tables of sequences: on-demand allocation, prefix hits, fork, copy-on-write
events.py  the numbered log of what changed
mirror.py  the same state rebuilt elsewhere, from a snapshot and that log
"""
