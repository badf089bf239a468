"""Structured output by llguidance.

compile.py  grammars, compiled beside the steps     queue.py   requests that wait for that
matcher.py  where a sequence stands in its grammar  trial.py   a large grammar is first tried in another process
"""
