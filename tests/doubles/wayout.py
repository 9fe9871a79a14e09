"""An HTTP proxy for a network without internet access, like those of companies that allow no direct connections."""

import contextlib
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def a_way_out(address: str) -> Iterator[str]:
    """Run the proxy at this local address during the block; yields its URL."""
    server = ThreadingHTTPServer((address, 0), _Proxy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{address}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Proxy(BaseHTTPRequestHandler):
    def do_CONNECT(self) -> None:
        host, _, port = self.path.rpartition(":")
        try:
            there = socket.create_connection((host, int(port)), 30)
        except OSError as error:
            self.send_error(502, str(error))
            return
        with there:
            there.settimeout(None)
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=_pass_on, args=(there, self.connection))
            back.start()
            _pass_on(self.connection, there)
            back.join()
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError), one.makefile("rb", buffering=0) as said:
        shutil.copyfileobj(said, other.makefile("wb", buffering=0))
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_WR)
