"""Answers on the kubelet port of simulated nodes: one sentence, at once, to `kubectl logs`, `exec` and the like.

Owns the listening sockets of all nodes of one process, on loopback. The API server connects to a node's address to fetch logs
or to run something in a container; if nothing listened there, it would wait for its timeout. Nothing is served here, so no
client is authenticated.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from aiohttp import web

SENTENCE = (
    "this node is simulated: its containers do not run, so they have no logs and nothing can be run in them; "
    "for that, use a real node (draco cluster up --real-nodes)"
)


class ServingCertificate(msgspec.Struct, frozen=True):
    """The files of the certificate that all nodes of one process serve with, and of its key, both PEM."""

    certificate: Path
    key: Path


@asynccontextmanager
async def answering(addresses: Iterable[str], serving: ServingCertificate) -> AsyncIterator[Mapping[str, int]]:
    """Answer on a free port of each address during the block, which is given the ports by address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(serving.certificate, serving.key)
    hosts = sorted(set(addresses))
    if not hosts:
        yield {}
        return
    answers = web.Server(_answer, access_log=None)
    server = await asyncio.get_running_loop().create_server(answers, hosts, 0, ssl=context, backlog=8)
    try:
        yield dict(socket.getsockname() for socket in server.sockets)
    finally:
        server.close()
        await answers.shutdown(0.0)


async def _answer(_request: web.BaseRequest) -> web.Response:
    # A bad request: for this status the API server passes the text on unchanged.
    answer = web.Response(status=400, text=SENTENCE)
    answer.force_close()
    return answer
