"""The simulated driver of a node: a real `libnvidia-ml.so.1`, and the service that answers it.

The library is small and in C: it sends each call over a Unix socket to the service, which answers from the node's state file. The
real library sends it to the kernel by an ioctl. So the simulated one works in every process that loads NVML, in any language and
any container, and nothing of the simulator is in that process.

Rooms: `signatures` (each C function) and `forms` (the shapes that they have), `library` (makes the shared library), `service`
(answers calls), `root` (a driver as it is installed on a node).
"""
