"""Simulated NVML: pynvml's functions over the state of simulated GPUs."""
