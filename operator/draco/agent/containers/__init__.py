"""What every container with a device gets of the node's driver: libraries that its linker finds, programs, firmware, sockets.

NVIDIA's container toolkit knows that best, so it is asked; where it cannot be, we look ourselves and say so.

Rooms: `edits` (what can be done to a container), `toolkit` (asks NVIDIA's), `driver_files` (looks itself), `common_edits`
(which of both holds now).
"""
