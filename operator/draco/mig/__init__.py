"""MIG planning: every decision about partitions, from what NVML reports for a board. Pure: no NVML, no clock.

Rooms: `board` tables as values; `geometry` the states of one GPU, and where an instance goes; `ideal_packing` what fits on many
GPUs; `layouts` wanted layouts; `keeping` which idle instances stay; `observed` a GPU's current state; `gpu_plan` the steps for a
GPU's policy, `claim_plan` those for claims; `repair` the fewest moves that unblock a claim; `replay` the effect of another rule.
"""
