"""Programmatic dependent launch: a kernel may start while the one before it still runs.

Its first act is to wait for that one's results (`gdc_wait`); what is gained is the time a launch takes.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

NO_OVERLAP = {"PDL": False, "launch_pdl": False}


@cache
def _can(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def overlap(tensor: Tensor) -> dict[str, bool]:
    """The kernel arguments for it, where the tensor's device can."""
    can = _can(tensor.device)
    return {"PDL": can, "launch_pdl": can}
