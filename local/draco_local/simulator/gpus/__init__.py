"""The simulated hardware of one node: its boards, and the state of its GPUs that processes share."""
