"""Free ports."""

import random
import socket
from pathlib import Path

import pytest

from draco_local.cluster import ports
from draco_local.cluster.controlplane import ControlPlane, Settings
from draco_local.cluster.errors import PortInUse


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", ports.pick()))


def test_a_port_in_use_is_not_picked() -> None:
    with listening() as server:
        port = server.getsockname()[1]
        assert not ports.is_free("127.0.0.1", port)

        class Insisting(random.Random):
            turns = iter([port, *range(port, port + 50)])

            def randint(self, a: int, b: int) -> int:
                return int(next(self.turns))

        assert ports.pick(chance=Insisting()) > port


def test_a_port_promised_to_somebody_is_not_picked() -> None:
    all_but_one = frozenset(range(ports.FIRST, ports.LAST + 1)) - {ports.FIRST + 7}
    with pytest.raises(PortInUse, match="No free port was found"):
        ports.pick(taken=all_but_one | {ports.FIRST + 7})


def test_a_port_that_was_just_left_is_free_again() -> None:
    with listening() as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), server.accept()[0]:
            pass
    assert ports.is_free("127.0.0.1", port)


def test_an_address_elsewhere_has_no_ports_taken_here() -> None:
    assert ports.is_free("192.0.2.1", 6443)


def test_a_port_that_was_asked_for_and_is_in_use_is_one_sentence(tmp_path: Path) -> None:
    with listening() as server:
        port = server.getsockname()[1]
        plane = ControlPlane(tmp_path / "state", Settings(programs={}, port=port))
        with pytest.raises(
            PortInUse, match=rf"^Port {port} on 127\.0\.0\.1 is in use: stop what listens there or name"
        ):
            plane.start()
