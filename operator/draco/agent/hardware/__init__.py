"""The node's GPUs as NVML and the kernel report them, and their history. The only room that calls pynvml."""
