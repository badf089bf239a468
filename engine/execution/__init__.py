"""What computes a step: runners, which hold the KV pool's tensors, and the choice of tokens from logits."""
