"""What single change would let the claims of a pod fit."""
