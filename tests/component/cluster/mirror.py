"""A mirror of release sites on loopback, for tests that download."""

import hashlib
import io
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from draco_local.cluster.programs.download import ReleasedFile


class Mirror:
    """What the mirror serves by path, and the requests it got with their times.

    `sums` has the SHA-256 of each published file, by origin. A request for a path in `silent` is never answered,
    one in `stalled` only in part.
    """

    def __init__(self) -> None:
        self.sums: dict[str, str] = {}
        self.files: dict[str, bytes | Path] = {}
        self.asked: list[str] = []
        self.asked_at_s: list[float] = []
        self.silent: set[str] = set()
        self.stalled: set[str] = set()
        self.ended = threading.Event()
        self.url = ""

    def publish(self, release: ReleasedFile, programs: Mapping[str, bytes | Path]) -> None:
        """Serve a release with these programs, and record its sum."""
        (content,) = programs.values() if not any(release.programs.values()) else (archive(release, programs),)
        digest = hashlib.sha256(content if isinstance(content, bytes) else content.read_bytes()).hexdigest()
        self.files[f"/{release.origin}"] = content
        self.sums[release.origin] = digest


def archive(release: ReleasedFile, programs: Mapping[str, bytes | Path]) -> bytes:
    """The release's archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        for program, content in programs.items():
            data = content if isinstance(content, bytes) else content.read_bytes()
            entry = tarfile.TarInfo(release.programs[program])
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


@contextmanager
def running() -> Iterator[Mirror]:
    """A mirror, until the block ends."""
    mirror = Mirror()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            mirror.asked.append(self.path)
            mirror.asked_at_s.append(time.monotonic())
            if self.path in mirror.silent:
                mirror.ended.wait(60)
                return
            content = mirror.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            data = content if isinstance(content, bytes) else content.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(ConnectionError):  # a client that only checked the port has left
                if self.path in mirror.stalled:
                    self.wfile.write(data[: len(data) // 2])
                    mirror.ended.wait(60)
                else:
                    self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        mirror.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield mirror
        finally:
            mirror.ended.set()
            server.shutdown()
            thread.join()
