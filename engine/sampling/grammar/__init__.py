"""Structured output by llguidance.

compile.py     grammars, compiled beside the steps          queue.py    requests that wait for that
jobs.py        which grammar comes next, fair to tenants    trial.py    a large one is first tried in another process
vocabulary.py  tokens that the model cannot say             matcher.py  where a sequence stands in its grammar
reading.py     the tokenizer, as llguidance needs it        notation.py grammars in llguidance's own notation
token_bytes.py what each token is in bytes
"""
