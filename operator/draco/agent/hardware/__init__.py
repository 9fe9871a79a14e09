"""What NVML and the kernel say of this node's GPUs, and what has happened to them. Only here is pynvml called."""
