"""The GPU's kernels run on a CPU here, in Triton's interpreter."""

import tests.interpreter  # noqa: F401 (sets the switch before a test imports a kernel)
