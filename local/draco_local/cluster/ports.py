"""Finds free TCP ports for servers that need their port before they start.

Owns the choice. Ports lie below the kernel's range for outgoing connections, so that none of these takes a port between the
choice and the server's start.
"""

import errno
import random
import socket

from draco_local.cluster.errors import PortInUse

FIRST, LAST = 20_000, 31_999
_ATTEMPTS = 200


def is_free(address: str, port: int) -> bool:
    """Whether a server could listen on `address`:`port` now. Always true for an address of another machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return error.errno not in {errno.EADDRINUSE, errno.EACCES}
    return True


def pick(
    address: str = "127.0.0.1", *, taken: frozenset[int] = frozenset(), chance: random.Random | None = None
) -> int:
    """Pick a free port on `address` that is not one of `taken`; raises PortInUse when none is found."""
    chance = chance or random.SystemRandom()
    for _ in range(_ATTEMPTS):
        port = chance.randint(FIRST, LAST)
        if port not in taken and is_free(address, port):
            return port
    raise PortInUse(f"No free port was found between {FIRST} and {LAST} on {address}: name one that is free.")
