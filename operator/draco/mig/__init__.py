"""MIG planning: every decision about partitions, from what NVML reports for a board.

Rooms: `board` the tables as values; `geometry` the states of one GPU, and which GPU and start an instance gets; `packing` what
fits on many; `layouts` wanted layouts; `keeping` which idle instances stay; `observed` a GPU as it is; `gpu_plan` what has to
happen on it, step by step, for its policy, and `claim_plan` for claims; `repair` few moves that unblock a claim; `replay` what
would have happened under another rule. Pure: no NVML, no clock.
"""
