"""A local registry of images and charts, as far as pushing and pulling need one."""

import hashlib
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_UPLOADS = re.compile(r"/v2/.+/blobs/uploads/")
_BLOB = re.compile(r"/v2/.+/blobs/(sha256:[0-9a-f]{64})")
_MANIFEST = re.compile(r"/v2/(.+)/manifests/(.+)")


class Registry:
    """What was pushed. `manifests` by "name:tag" and by "name@digest"."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, tuple[str, bytes]] = {}
        self.uploads: dict[str, bytes] = {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.address = f"127.0.0.1:{self.server.server_port}"


@contextmanager
def a_registry() -> Iterator[Registry]:
    """A registry that answers during the block."""
    made = Registry()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _handler(registry: Registry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if found := _BLOB.fullmatch(path):
                content, kind = registry.blobs.get(found[1]), "application/octet-stream"
            elif found := _MANIFEST.fullmatch(path):
                separator = "@" if found[2].startswith("sha256:") else ":"
                kind, content = registry.manifests.get(f"{found[1]}{separator}{found[2]}", ("", None))
            else:
                content, kind = (b"{}", "application/json") if path == "/v2/" else (None, "")
            if content is None:
                self._answer(404)
            else:
                self._answer(200, content, {"Content-Type": kind, "Docker-Content-Digest": digest_of(content)})

        do_HEAD = do_GET  # noqa: N815 - the name by which it is found

        def do_POST(self) -> None:
            self._body()
            name = uuid.uuid4().hex
            registry.uploads[name] = b""
            self._answer(202, headers={"Location": f"{self.path.partition('?')[0]}{name}", "Range": "0-0"})

        def do_PATCH(self) -> None:
            path = self.path.partition("?")[0]
            registry.uploads[path.rpartition("/")[2]] += self._body()
            self._answer(
                202, headers={"Location": path, "Range": f"0-{len(registry.uploads[path.rpartition('/')[2]]) - 1}"}
            )

        def do_PUT(self) -> None:
            path = self.path.partition("?")[0]
            content = self._body()
            if found := _MANIFEST.fullmatch(path):
                kept = self.headers["Content-Type"], content
                separator = "@" if found[2].startswith("sha256:") else ":"
                registry.manifests[f"{found[1]}{separator}{found[2]}"] = kept
                registry.manifests[f"{found[1]}@{digest_of(content)}"] = kept
            else:
                content = registry.uploads.pop(path.rpartition("/")[2]) + content
                registry.blobs[digest_of(content)] = content
            self._answer(201, headers={"Location": path, "Docker-Content-Digest": digest_of(content)})

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            pieces = []
            while size := int(self.rfile.readline(), 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)

        def _answer(self, status: int, content: bytes = b"", headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
