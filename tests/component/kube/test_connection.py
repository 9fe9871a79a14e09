"""Requests over a connection: TLS to a real API server, timeouts, credentials, and the sentence for each failure."""

import asyncio
from pathlib import Path

import pytest

from draco.kube import errors
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection, TokenFile, trust
from draco.kube.connect.kubeconfig import connect
from draco.kube.errors import Unauthorized, Unreachable
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import NODES
from draco_local.cluster.controlplane import ControlPlane
from tests.component.kube.support import CONFIG_MAPS, a_config_map, eventually
from tests.doubles.faultproxy import FaultProxy, answer, anything, delay, drop, plain
from tests.doubles.token import FixedToken


async def test_a_client_certificate_says_who_one_is(api_server: ControlPlane, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    api_server.write_kubeconfig(path, "nobody-in-particular")
    async with await connect(path) as connection:
        with pytest.raises(errors.Forbidden, match='User "nobody-in-particular" cannot list') as caught:
            await Client(connection).list(NODES)
    assert caught.value.status == 403


async def test_a_server_whose_authority_is_not_ours_is_not_trusted(api_server: ControlPlane) -> None:
    async with Connection(api_server.server, tls=trust(None)) as connection:
        with pytest.raises(
            Unreachable, match=r"certificate of the API server at https://.* is not trusted.*this cluster"
        ):
            await connection.request("GET", "/version")


async def test_credentials_that_the_server_does_not_know_are_called_that(api_server: ControlPlane) -> None:
    tls = trust(api_server.pki / "ca.crt")
    async with Connection(api_server.server, tls=tls, credentials=FixedToken("invented")) as connection:
        with pytest.raises(Unauthorized, match="does not accept these credentials"):
            await connection.request("GET", "/api/v1/nodes")


async def test_a_server_that_is_not_there_is_one_clear_sentence() -> None:
    async with Connection("http://127.0.0.1:1") as connection:
        with pytest.raises(Unreachable) as caught:
            await connection.request("GET", "/version")
    assert str(caught.value) == (
        "cannot reach the API server at http://127.0.0.1:1: connection refused; is the cluster up?"
    )


async def test_a_name_that_does_not_resolve_is_one_clear_sentence() -> None:
    async with Connection("https://no-such-host.invalid:6443") as connection:
        with pytest.raises(Unreachable, match=r"cannot reach the API server at https://no-such-host\.invalid:6443: "):
            await connection.request("GET", "/version")


async def test_every_request_ends_in_its_time(through: Client, proxy: FaultProxy) -> None:
    async with proxy.unplugged():
        with pytest.raises(Unreachable, match=r"did not answer within 0\.3 s"):
            await through.connection.request("GET", "/version", timeout_s=0.3)


async def test_a_connection_that_breaks_is_unreachable(through: Client, proxy: FaultProxy) -> None:
    proxy.fault(anything, drop, times=3)
    with pytest.raises(Unreachable, match="lost the connection"):
        await through.connection.request("POST", "/api/v1/namespaces", body=b"{}")


async def test_a_gateway_that_answers_in_html_is_a_server_error(through: Client, proxy: FaultProxy) -> None:
    proxy.fault(anything, plain(503, "<html>no backend</html>"))
    with pytest.raises(errors.ServerError, match="answered 503: <html>no backend"):
        await through.connection.request("GET", "/version")


async def test_a_redirect_is_not_followed_with_credentials(through: Client, proxy: FaultProxy) -> None:
    proxy.fault(anything, answer(302, headers={"Location": "http://127.0.0.1:1/elsewhere"}))
    with pytest.raises(errors.ApiError) as caught:
        await through.connection.request("GET", "/version")
    assert caught.value.status == 302
    assert len(proxy.seen) == 1


async def test_a_refused_token_is_read_again_and_the_request_repeated_once(proxy: FaultProxy, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    proxy.fault(
        lambda request: request.headers.get("Authorization") != "Bearer second", answer(401, "Unauthorized"), times=99
    )
    async with Connection(proxy.url, credentials=TokenFile(token)) as connection:
        with pytest.raises(Unauthorized):
            await connection.request("GET", "/version")
        assert len(proxy.seen) == 1, "there was nothing better to send"
        token.write_text("second")
        assert await connection.request("GET", "/version")


class RenewedOnRefusal:
    """Credentials like a plugin's: the old token is used until the server refuses it."""

    async def authorization(self) -> str:
        return "Bearer first"

    async def renew(self, rejected: str) -> str:
        assert rejected in {"Bearer first", "Bearer second"}
        return "Bearer second"


async def test_a_refused_token_is_renewed_within_the_request(proxy: FaultProxy) -> None:
    proxy.fault(
        lambda request: request.headers.get("Authorization") != "Bearer second", answer(401, "Unauthorized"), times=99
    )
    async with Connection(proxy.url, credentials=RenewedOnRefusal()) as connection:
        assert await connection.request("GET", "/version")
    assert len(proxy.seen) == 2


async def test_many_watches_leave_room_for_requests(through: Client, client: Client, namespace: str) -> None:
    async def watch(ready: asyncio.Event) -> None:
        path = CONFIG_MAPS.path(namespace=namespace)
        async with through.connection.lines(path, params={"watch": "true"}) as lines:
            ready.set()
            async for _ in lines:
                pass

    flags = [asyncio.Event() for _ in range(150)]
    tasks = [asyncio.create_task(watch(flag)) for flag in flags]
    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*(flag.wait() for flag in flags))
            await through.create(CONFIG_MAPS, a_config_map(namespace, "a"))
            await through.get(CONFIG_MAPS, ObjectKey(namespace, "a"))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_stream_that_ends_in_the_middle_of_a_line_did_not_end_well(
    client: Client, through: Client, proxy: FaultProxy, namespace: str
) -> None:
    seen: list[bytes] = []

    async def watch() -> None:
        path = CONFIG_MAPS.path(namespace=namespace)
        async with through.connection.lines(path, params={"watch": "true"}) as batches:
            async for lines in batches:
                seen.extend(lines)

    watching = asyncio.create_task(watch())
    (await proxy.open_stream()).truncate_next = True
    await client.create(CONFIG_MAPS, a_config_map(namespace, "a"))
    with pytest.raises(Unreachable, match="in the middle of a line"):
        await asyncio.wait_for(watching, 60)
    assert seen == []


async def test_a_closed_connection_says_so(through: Client) -> None:
    await through.connection.request("GET", "/version")
    await through.close()
    with pytest.raises(Unreachable, match="is closed"):
        await through.connection.request("GET", "/version")


async def test_closing_ends_what_is_in_flight(through: Client, proxy: FaultProxy) -> None:
    proxy.fault(anything, delay(30))
    request = asyncio.create_task(through.connection.request("GET", "/version"))
    await eventually(lambda: bool(proxy.seen), "the request is on its way")
    await through.close()
    with pytest.raises(Unreachable):
        await asyncio.wait_for(request, 60)
