"""The agent as kubelet knows it: a DRA plugin on two sockets."""
