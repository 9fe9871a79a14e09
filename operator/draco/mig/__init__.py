"""MIG planning: every decision about partitions, from what NVML reports for a board.

Rooms: `board` the tables as values; `geometry` the states of one GPU; `packing` what fits on many; `placement` which GPU and
start; `layouts` wanted layouts; `repair` few moves that unblock a claim; `policies` and `replay` what would have happened under
another rule. Pure: no NVML, no claims, no clock.
"""
