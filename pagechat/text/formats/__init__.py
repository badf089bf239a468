"""The formats that are known, and which of them a chat template writes.

format.py    what a format is                      qwen_xml.py  Qwen3-Coder
hermes.py    Hermes, Qwen, SmolLM3                 deepseek.py  DeepSeek V3, R1, V3.1
llama.py     Llama 3.x                             gemma.py     Gemma 4, FunctionGemma
mistral.py   Mistral, before and since 2025        harmony.py   gpt-oss
choose.py    the one that a template writes
"""
