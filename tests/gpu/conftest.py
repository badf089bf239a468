"""Tests that need an NVIDIA GPU: `make gpu-test`. Elsewhere they are not collected."""

import torch

collect_ignore_glob = [] if torch.cuda.is_available() and torch.version.cuda else ["test_*.py"]
