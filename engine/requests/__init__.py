"""What a client asked and what answers it: requests, their sequences, beams, and what can be served at all."""
