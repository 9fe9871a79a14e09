"""MIG planning: every decision about partitions, from what NVML reports for a board.

Rooms: `board` the tables as values; `geometry` the states of one GPU; `packing` what fits on many; `placement` which GPU and
start; `layouts` wanted layouts; `keeping` which idle instances stay; `gpu_plan` what has to happen on one GPU, step by step;
`repair` few moves that unblock a claim; `replay` what would have happened under another rule. Pure: no NVML, no
clock.
"""
