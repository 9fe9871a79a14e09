"""Simulated hardware: NVML without a GPU, and the nodes around it.

`boards` and `boards_mig` are what NVML says about each model; `state` is one node's GPUs in a file that processes share;
`nvml` answers pynvml's functions from that file; `faults` breaks things on purpose; `sysfs` writes the PCI tree that goes
with it; `compare` holds the tables against real hardware. `kubelet` and `nodes` stand in for everything else of a node.
"""
