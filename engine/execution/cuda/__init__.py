"""Steps on an NVIDIA GPU: what the host must say of a step in one upload, the rest in CUDA graphs.

tables.py   block tables that stay on the device and are patched
inputs.py   a step's numbers in one pinned buffer, one upload
graphs.py   decode steps, captured once per batch size
runner.py   the executor: launches a step and later collects its tokens
"""
