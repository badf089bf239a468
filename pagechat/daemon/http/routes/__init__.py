"""One module a surface. A route reads its body, asks the daemon and shapes the answer; it decides nothing else."""
