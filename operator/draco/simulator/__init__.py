"""Simulated hardware: NVML without a GPU, and the nodes around it.

`boards` and `boards_mig` are what NVML says about each model; `state` is one node's GPUs in a file that processes share;
`nvml` answers pynvml's functions from that file; `faults` breaks things on purpose; `sysfs` writes the PCI tree that goes
with it; `compare` holds the tables against real hardware.

`nodes` puts whole nodes together, hundreds in one process. `kubelet` stands in for kubelet: `podfeed` brings it its pods,
`pods` decides about one, `plugins` calls DRA drivers, `ledger` remembers, `node_object` keeps Node and Lease.
"""
