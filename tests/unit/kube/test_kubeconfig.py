"""From kubeconfig files to a connection, and one sentence for each way in which that fails."""

import base64
import json
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from draco.kube.connect import authentication
from draco.kube.connect.connection import Connection, environment_proxy
from draco.kube.connect.kubeconfig import connect
from draco.kube.errors import KubeconfigError, Unreachable
from draco_local.cluster.pki import Authority


def a_kubeconfig(
    path: Path, *, server: str = "http://127.0.0.1:1", name: str = "one", user: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None, current: str | None = "",
) -> Path:  # fmt: skip
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name if current == "" else current,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": name, "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


async def server_of(path: Path | None = None, context: str | None = None) -> str:
    async with await connect(path, context) as connection:
        return connection.server


async def test_a_named_file_is_used(tmp_path: Path) -> None:
    assert await server_of(a_kubeconfig(tmp_path / "config", server="http://here:1/")) == "http://here:1"


async def test_a_context_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = a_kubeconfig(tmp_path / "one", name="one", server="http://one")
    two = a_kubeconfig(tmp_path / "two", name="two", server="http://two")
    monkeypatch.setenv("KUBECONFIG", f"{one}:{tmp_path / 'absent'}:{two}")
    assert await server_of() == "http://one"
    assert await server_of(context="two") == "http://two"


async def test_of_two_files_that_name_the_same_the_first_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = a_kubeconfig(tmp_path / "one", server="http://first", current=None)
    second = a_kubeconfig(tmp_path / "two", server="http://second")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}")
    assert await server_of() == "http://first"


async def test_the_file_in_the_home_folder_is_the_default(tmp_path: Path) -> None:
    folder = tmp_path / "home" / ".kube"
    folder.mkdir(parents=True)
    a_kubeconfig(folder / "config", server="http://home")
    assert await server_of() == "http://home"


async def test_files_are_found_beside_the_kubeconfig_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    path = a_kubeconfig(tmp_path / "config", user={"tokenFile": "token", "token": "old"})
    async with await connect(path) as connection:
        assert await connection._credentials.authorization() == "Bearer secret"


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no current context": ({"current": None}, "has no current-context"),
    "an unknown context": ({"current": "gone"}, r"has no context 'gone' \(there is: one\)"),
    "no server": ({"server": ""}, "names no cluster with a server"),
    "a server without a scheme": ({"server": "10.0.0.1:6443"}, "names the server '10.0.0.1:6443': write its address, such as"),
    "a server that is no address": ({"server": "https://[::1"}, "write its address, such as https://10.0.0.1:6443"),
    "a server with no port there is": ({"server": "https://a:99999"}, "write its address, such as https://10.0.0.1:6443"),
    "a certificate that is not base64": (
        {"server": "https://a", "cluster": {"certificate-authority-data": "%%"}}, "is not base64",
    ),
    "a certificate that is not PEM": (
        {"server": "https://a", "cluster": {"certificate-authority-data": base64.b64encode(b"x").decode()}},
        "not valid PEM",
    ),
    "an authority that is not there": (
        {"server": "https://a", "cluster": {"certificate-authority": "absent.crt"}},
        "cannot read the certificate-authority that the kubeconfig names, .*absent.crt: No such file",
    ),
    "verification switched off": (
        {"server": "https://a", "cluster": {"insecure-skip-tls-verify": True}}, "switches off TLS verification",
    ),
    "an exec plugin that is not there": (
        {"user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/absent/plugin"}}},
        "the credential plugin of context 'one' failed: .*No such file",
    ),
    "an exec plugin that fails": (
        {"user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "false"}}},
        "the credential plugin of context 'one' failed: .*returned 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
async def test_what_is_wrong_with_a_kubeconfig_is_one_sentence(tmp_path: Path, case: str) -> None:
    options, expected = BAD[case]
    path = a_kubeconfig(tmp_path / "config", **options)
    with pytest.raises(KubeconfigError, match=expected) as caught:
        await connect(path)
    assert "\n" not in str(caught.value).strip()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", "it is empty"), ("- a", "it is not a mapping"), ("{", "it is not YAML"), ("contexts: [{}]", "'contexts'")],
)
async def test_a_file_that_is_no_kubeconfig_is_called_that(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(KubeconfigError, match=expected):
        await connect(path)


async def test_the_home_of_nobody_holds_no_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "~nobody-of-that-name/config")
    with pytest.raises(KubeconfigError, match="no kubeconfig at ~nobody-of-that-name/config"):
        await connect()
    with pytest.raises(KubeconfigError, match="no kubeconfig at ~nobody-of-that-name/other"):
        await connect(Path("~nobody-of-that-name/other"))


async def test_a_missing_file_comes_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=r"no kubeconfig at .*absent: name one with --kubeconfig"):
        await connect(tmp_path / "absent")
    with pytest.raises(KubeconfigError, match=r"/home/\.kube/config"):
        await connect()


PLUGIN = """\
import json, pathlib, sys
runs = pathlib.Path(sys.argv[1])
count = int(runs.read_text()) + 1 if runs.exists() else 1
runs.write_text(str(count))
print(json.dumps({
    "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
    "status": {"token": f"token-{count}", **json.loads(sys.argv[2])},
}))
"""


def a_plugin(tmp_path: Path, **status: str) -> tuple[Path, Path]:
    """A kubeconfig with an exec plugin that returns token-1, token-2, ..., and the file in which it counts its runs."""
    script, runs = tmp_path / "plugin.py", tmp_path / "runs"
    script.write_text(PLUGIN)
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(script), str(runs), json.dumps(status)],
        }
    }
    return a_kubeconfig(tmp_path / "config", user=user), runs


async def test_an_exec_plugin_is_run_once_and_again_when_its_token_is_refused(tmp_path: Path) -> None:
    path, runs = a_plugin(tmp_path, expirationTimestamp="2099-01-01T00:00:00Z")
    async with await connect(path) as connection:
        credentials = connection._credentials
        for _ in range(3):
            assert await credentials.authorization() == "Bearer token-1"
        assert await credentials.renew("Bearer token-1") == "Bearer token-2"
        assert await credentials.renew("Bearer token-1") == "Bearer token-2", "another request already renewed it"
        assert runs.read_text() == "2"


async def test_an_exec_plugin_is_run_again_when_its_token_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draco.kube.connect.authentication._TOKEN_CHECK_S", 0.0)
    path, _ = a_plugin(tmp_path, expirationTimestamp="2020-01-01T00:00:00Z")
    async with await connect(path) as connection:
        assert await connection._credentials.authorization() == "Bearer token-2"


def test_without_a_kubeconfig_nothing_is_loaded_to_say_so(tmp_path: Path) -> None:
    program = (
        "import asyncio, pathlib, sys; from draco.kube.errors import KubeconfigError;"
        "from draco.kube.connect.kubeconfig import connect\n"
        f"try: asyncio.run(connect(pathlib.Path({str(tmp_path / 'absent')!r})))\n"
        "except KubeconfigError: print('kubernetes_asyncio' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


async def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    safe_load = yaml.safe_load

    def counted(stream: Any) -> object:
        read.append(stream)
        return safe_load(stream)

    path = a_kubeconfig(tmp_path / "config", user={"token": "t"})
    monkeypatch.setattr(yaml, "safe_load", counted)
    async with await connect(path) as connection:
        assert connection.namespace == "default"
    assert len(read) == 1


async def test_the_context_says_where_its_user_works(tmp_path: Path) -> None:
    path = a_kubeconfig(tmp_path / "config")
    document = yaml.safe_load(path.read_text())
    document["contexts"][0]["context"]["namespace"] = "team"
    path.write_text(yaml.safe_dump(document))
    async with await connect(path) as connection:
        assert connection.namespace == "team"


async def test_a_user_with_a_password_has_basic_credentials(tmp_path: Path) -> None:
    path = a_kubeconfig(tmp_path / "config", user={"username": "me", "password": "it"})
    async with await connect(path) as connection:
        assert await connection._credentials.authorization() == f"Basic {base64.b64encode(b'me:it').decode()}"


async def test_a_token_file_is_read_again_when_someone_replaced_it(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    path = a_kubeconfig(tmp_path / "config", user={"tokenFile": str(token)})
    async with await connect(path) as connection:
        assert await connection._credentials.authorization() == "Bearer first"
        token.write_text("the second")
        assert await connection._credentials.authorization() == "Bearer the second"


async def test_a_certificate_is_found_beside_the_file_of_its_user_and_leaves_no_key_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.create("ca")
    me = authority.issue("me")
    users, clusters, temporary = tmp_path / "users", tmp_path / "clusters", tmp_path / "temporary"
    for folder in (users, clusters, temporary):
        folder.mkdir()
    (users / "me.crt").write_bytes(me.certificate)
    (clusters / "ca.crt").write_bytes(authority.certificate)
    key = base64.b64encode(me.key).decode()
    user = {"client-certificate": "me.crt", "client-key-data": key}
    one = a_kubeconfig(clusters / "config", server="https://a", cluster={"certificate-authority": "ca.crt"})
    document = yaml.safe_load(one.read_text())
    del document["users"]
    one.write_text(yaml.safe_dump(document))
    other = a_kubeconfig(users / "config", name="other", user=user)
    other.write_text(other.read_text().replace("name: other\n  user:", "name: one\n  user:"))
    monkeypatch.setenv("KUBECONFIG", f"{one}:{other}")
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    for _ in range(2):
        async with await connect():
            assert not list(temporary.iterdir())


async def test_credentials_of_a_password_file_do_not_stand_in_for_the_kubeconfigs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(text="{}")

    (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with RawTestServer(answer) as server:
        for user in ({"token": "t"}, {}):
            path = a_kubeconfig(tmp_path / "config", server=f"http://127.0.0.1:{server.port}", user=user)
            async with await connect(path) as connection:
                await connection.request("GET", "/version")
    assert seen == ["Bearer t", None]


async def test_a_pod_connects_as_its_service_account(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_bytes(Authority.create("ca").certificate)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    async with authentication.connect_in_pod(environ, mount=tmp_path) as connection:
        assert connection.server == "https://[fd00::1]:443"
        assert await connection._credentials.authorization() == "Bearer first"
        (tmp_path / "token").write_text("the second\n")
        assert await connection._credentials.authorization() == "Bearer the second"
    (tmp_path / "token").unlink()
    with pytest.raises(KubeconfigError, match="automountServiceAccountToken"):
        authentication.connect_in_pod(environ, mount=tmp_path)


PLUGIN_WITH_CERTIFICATES = """\
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
print(json.dumps({
    "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
    "status": {
        "clientCertificateData": (folder / "tls.crt").read_text(), "clientKeyData": (folder / "tls.key").read_text(),
    },
}))
"""


async def test_a_certificate_of_a_plugin_is_shown_and_exchanged_after_a_refusal(tmp_path: Path) -> None:
    authority = Authority.create("ca")

    def issue(name: str) -> None:
        issued = authority.issue(name)
        (tmp_path / "tls.crt").write_bytes(issued.certificate)
        (tmp_path / "tls.key").write_bytes(issued.key)

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority.certificate.decode())
    server_side = authority.issue("server", hosts=["127.0.0.1"])
    (tmp_path / "server.pem").write_bytes(server_side.certificate + server_side.key)
    context.load_cert_chain(tmp_path / "server.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    async def who(request: web.BaseRequest) -> web.Response:
        assert request.transport is not None
        shown = request.transport.get_extra_info("peercert")["subject"]
        return web.json_response(dict(pair for part in shown for pair in part), headers={"Connection": "close"})

    script = tmp_path / "plugin.py"
    script.write_text(PLUGIN_WITH_CERTIFICATES)
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": [str(script), str(tmp_path)],
    }  # fmt: skip
    authorities = {"certificate-authority-data": base64.b64encode(authority.certificate).decode()}
    issue("first")
    server = RawTestServer(who, scheme="https")
    await server.start_server(ssl=context)
    async with server:
        path = a_kubeconfig(
            tmp_path / "config", server=f"https://127.0.0.1:{server.port}", user={"exec": plugin}, cluster=authorities
        )
        async with await connect(path) as connection:
            assert b"first" in await connection.request("GET", "/")
            issue("second")
            await connection._credentials.renew("")
            assert b"second" in await connection.request("GET", "/")


async def test_a_certificate_is_checked_for_the_tls_server_name(tmp_path: Path) -> None:
    authority = Authority.create("ca")
    issued = authority.issue("server", hosts=["api.internal"])
    (tmp_path / "server.pem").write_bytes(issued.certificate + issued.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem")

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(text="{}")

    server = RawTestServer(answer, scheme="https")
    await server.start_server(ssl=context)
    trusted = {"certificate-authority-data": base64.b64encode(authority.certificate).decode()}

    async def connected(cluster: dict[str, str]) -> Connection:
        address = f"https://127.0.0.1:{server.port}"
        return await connect(a_kubeconfig(tmp_path / "config", server=address, cluster=trusted | cluster))

    async with server:
        async with await connected({"tls-server-name": "api.internal"}) as connection:
            assert await connection.request("GET", "/") == b"{}"
            async with connection.lend_session() as session, session.get(connection.server) as answered:
                assert answered.status == 200
        for other in ({}, {"tls-server-name": "api.elsewhere"}):
            async with await connected(other) as connection:
                with pytest.raises(Unreachable, match="is not trusted"):
                    await connection.request("GET", "/")


def test_a_server_on_this_machine_is_reached_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", ".internal")
    assert environment_proxy("https://10.0.0.1:6443") == "http://proxy:3128"
    assert environment_proxy("https://127.0.0.1:6443") is None
    assert environment_proxy("https://[::1]:6443") is None
    assert environment_proxy("https://localhost:6443") is None
    assert environment_proxy("https://api.internal") is None
