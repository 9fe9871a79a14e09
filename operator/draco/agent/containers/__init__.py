"""What every container with a device gets of the node's driver: libraries that its linker finds, programs, firmware, sockets.

NVIDIA's container toolkit is asked first; if it cannot be, the agent searches the files itself and says so.

Rooms: `edits` (possible edits of a container), `toolkit` (asks NVIDIA's), `driver_files` (searches the files), `common_edits`
(which of both applies now), `limit_library` (a library that limits memory).
"""
