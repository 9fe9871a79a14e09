"""A device plugin for tests, which advertises countable GPUs to a real kubelet.

Owns both sides of kubelet's device plugin protocol, from outside the node, through its disk. The few messages are encoded by
hand: each has only fields of text or bytes. No pod ever gets a GPU from it.
"""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from draco_local.cluster.realnode.nodes import disk_of

RESOURCE = "nvidia.com/gpu"
SOCKET = "nvidia-gpu.sock"
"""The socket name of NVIDIA's device plugin."""
_ANSWERS_WITHIN_S = 30.0


@contextmanager
def device_plugin(real_nodes: Path, node: str, *, gpus: int) -> Iterator[None]:
    """Within the block, the node's kubelet counts this many GPUs. `real_nodes` is the folder of the cluster's real nodes."""
    sockets = disk_of(real_nodes, node) / "fs/var/lib/kubelet/device-plugins"
    folder = os.open(sockets, os.O_PATH)  # a socket's path has at most 107 bytes
    server = grpc.server(ThreadPoolExecutor(2))
    gone = threading.Event()
    devices = b"".join(_field(1, _field(1, f"GPU-{number}") + _field(2, "Healthy")) for number in range(gpus))

    def lists(_request: bytes, _context: Any) -> Iterator[bytes]:
        yield devices
        gone.wait()

    methods: dict[str, Any] = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda _request, _context: b""),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(lists),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods),))
    server.add_insecure_port(f"unix:/proc/self/fd/{folder}/{SOCKET}")
    server.start()
    try:
        with grpc.insecure_channel(f"unix:/proc/self/fd/{folder}/kubelet.sock") as kubelet:
            register: Any = kubelet.unary_unary("/v1beta1.Registration/Register")
            register(
                _field(1, "v1beta1") + _field(2, SOCKET) + _field(3, RESOURCE),
                timeout=_ANSWERS_WITHIN_S,
            )
        yield
    finally:
        gone.set()
        server.stop(grace=None).wait()
        (sockets / SOCKET).unlink(missing_ok=True)
        os.close(folder)


def _field(number: int, content: str | bytes) -> bytes:
    """A field of a message: shorter than 128 bytes, so that its length is one byte."""
    data = content.encode() if isinstance(content, str) else content
    assert len(data) < 128
    return bytes((number << 3 | 2, len(data))) + data
