"""Pure functions on tensors, which import nothing of ours: the operations an engine needs, and their implementations.

backend.py   `Backend`: every operation with its contract; and how one is chosen
torch/       plain torch: for any CPU, and the reference for every other
cpp/         C++ for CPUs, compiled on the user's machine
triton/      for NVIDIA GPUs
"""
