"""Pure functions on tensors, which import nothing of ours: the operations an engine needs, and their implementations.

ops.py   every operation with its contract; picks the implementation by device
torch/   plain torch: for the CPU, and the reference for every other
"""
