"""The GPU kernels on a CPU: Triton's interpreter runs them, in float32 and float16 (it has no bfloat16 arithmetic).

The switch is read when a kernel is defined, so it is set before anything imports `kernels.triton`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

    from triton.runtime import interpreter

    _patch: Callable[[Any, Any], None] = interpreter._patch_lang_tensor

    def _patch_with_index(tensor: Any, scope: Any) -> None:
        """A loop over loaded bounds takes `int` of arrays of one element, which NumPy 2.4 no longer converts."""
        _patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _patch_with_index
