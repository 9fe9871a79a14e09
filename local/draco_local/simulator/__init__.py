"""Simulated hardware: NVML without a GPU, and the nodes around it.

Rooms, each knowing only those after it: `nodes` (whole nodes, hundreds in one process) and `agent`, `kubelet` (a stand-in),
`accidents` (what is done to GPUs on purpose), `nvml` (pynvml's functions), `gpus` (boards, and the state that processes share).
`driver` is a libnvidia-ml over `nvml`, and `compare` checks the tables against real hardware.
"""
