"""The service that answers the simulated library: `python -m draco_local.simulator.driver.service --state FILE`.

Owns the socket and how calls travel over it. Each calling process has a SimulatedNvml of its own, as on hardware, for as long as
it has a connection open. SimulatedNvml decides what to answer.
"""

import signal
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import pynvml
import structlog

from draco.resources.errors import DracoError
from draco_local.simulator.driver.forms import Parameter
from draco_local.simulator.driver.library import SOCKET
from draco_local.simulator.driver.signatures import BY_SYMBOL
from draco_local.simulator.gpus import procfs, state, sysfs
from draco_local.simulator.nvml.handles import ProcessKilled
from draco_local.simulator.nvml.library import SimulatedNvml

log = structlog.get_logger(__name__)

_PEER = struct.Struct("3i")
"""Process, user and group of a socket's other end."""


class _Sessions:
    """The SimulatedNvml of each process, and how many connections it has."""

    def __init__(self, make: Callable[[bool], SimulatedNvml]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._open: dict[int, tuple[SimulatedNvml, int]] = {}

    def joined(self, process: int, *, is_root: bool) -> SimulatedNvml:
        """Count one more connection of a process, and return its SimulatedNvml."""
        with self._lock:
            nvml, count = self._open.get(process) or (self._make(is_root), 0)
            self._open[process] = (nvml, count + 1)
            return nvml

    def left(self, process: int) -> None:
        """Count one connection less of a process."""
        with self._lock:
            nvml, count = self._open.pop(process)
            if count > 1:
                self._open[process] = (nvml, count - 1)


class DriverService(socketserver.ThreadingUnixStreamServer):
    """Answers on a socket until it is shut down."""

    daemon_threads = True  # one may be waiting for an event
    request_queue_size = 64

    def __init__(self, state_file: Path, path: Path) -> None:
        path.unlink(missing_ok=True)
        super().__init__(str(path), _Connection)
        path.chmod(0o666)
        self.sessions = _Sessions(lambda is_root: SimulatedNvml(state_file, is_root=is_root))
        self.connections: set[socket.socket] = set()

    def server_close(self) -> None:
        """Close every connection: the sessions end with the service."""
        super().server_close()
        for connection in self.connections.copy():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Connection(socketserver.StreamRequestHandler):
    server: DriverService

    def _caller(self) -> int:
        """The user of the calling process."""
        given = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        return int(_PEER.unpack(given)[1])

    def handle(self) -> None:
        """Answer calls until the process ends or closes it."""
        self.server.connections.add(self.connection)
        process: int | None = None
        nvml: SimulatedNvml | None = None
        try:
            with suppress(ConnectionError):
                while head := self.rfile.read(4):
                    request = self.rfile.read(*struct.unpack("<I", head))
                    if nvml is None:
                        (process,) = struct.unpack_from("<Q", request)
                        nvml = self.server.sessions.joined(process, is_root=self._caller() == 0)
                    answer = answered(nvml, request[8:])
                    self.wfile.write(struct.pack("<I", len(answer)) + answer)
        finally:
            self.server.connections.discard(self.connection)
            if process is not None:
                self.server.sessions.left(process)


def answered(nvml: SimulatedNvml, request: bytes) -> bytes:
    """Answer a call: its return code, and what to write behind each pointer."""
    (length,) = struct.unpack_from("<I", request)
    signature = BY_SYMBOL[request[4 : 4 + length].decode()]
    arguments = list(_arguments(signature.parameters, request, 4 + length))
    code = int(pynvml.NVML_SUCCESS)
    try:
        signature.answer(nvml, arguments)
    except pynvml.NVMLError as refusal:
        code = int(refusal.value)
    except (DracoError, ProcessKilled):
        log.exception("nvml.unanswered", function=signature.symbol)
        code = int(pynvml.NVML_ERROR_UNKNOWN)
    written = [
        _behind(each, argument)
        for each, argument in zip(signature.parameters, arguments, strict=True)
        if each.kind not in ("handle", "number", "text")
    ]
    return struct.pack("<i", code) + b"".join(struct.pack("<I", len(each)) + each for each in written)


def _arguments(parameters: Sequence[Parameter], request: bytes, at: int) -> Iterator[Any]:
    for each in parameters:
        if each.kind in ("handle", "number"):
            (value,) = struct.unpack_from("<Q", request, at)
            yield value
            at += 8
            continue
        there, length = struct.unpack_from("<BI", request, at)
        content = request[at + 5 : at + 5 + length]
        at += 5 + length
        if not there:
            yield None
        elif each.kind == "text":
            yield content.decode(errors="replace")
        elif each.kind == "struct":
            yield each.type.from_buffer_copy(content)
        else:
            yield [] if each.kind == "written" else bytearray(content)


def _behind(parameter: Parameter, argument: Any) -> bytes:
    if argument is None:
        return b""
    return b"".join(argument) if parameter.kind == "written" else bytes(argument)


@contextmanager
def serving(state_file: Path, path: Path) -> Iterator[DriverService]:
    """Answer in threads of this process, for tests."""
    with DriverService(state_file, path) as service:
        thread = threading.Thread(
            target=service.serve_forever, kwargs={"poll_interval": 0.005}, name="simulated driver"
        )
        thread.start()
        try:
            yield service
        finally:
            service.shutdown()
            thread.join()
            path.unlink()


@click.command()
@click.option("--state", "state_file", type=click.Path(dir_okay=False, path_type=Path), required=True)
@click.option("--socket", "path", type=click.Path(dir_okay=False, path_type=Path), default=SOCKET, show_default=True)
def main(state_file: Path, path: Path) -> None:
    """Answer the simulated libnvidia-ml from a state file, and keep its GPUs' part of /sys and /proc beside that file."""
    gpus = state.load(state_file)
    sysfs.build(sysfs.tree(state_file), gpus)
    procfs.build(state_file, gpus)
    with DriverService(state_file, path) as service:
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=service.shutdown).start())
        service.serve_forever(poll_interval=3600.0)
    path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
