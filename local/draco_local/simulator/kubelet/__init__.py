"""A stand-in for kubelet: no containers, everything else that concerns claims for real."""
