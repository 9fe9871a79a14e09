"""etcd and Kubernetes' servers as plain processes: an API server in seconds, without containers.

Owns their flags, certificates, readiness and order of starting and stopping. Knows nothing of nodes or of Draco.
etcd listens on a Unix socket in the state folder, so the cluster's data is open to nobody else on the machine.
"""

import http.client
import shutil
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from draco_local.cluster import kubeconfig, ports
from draco_local.cluster.errors import PortInUse, ProcessFailed
from draco_local.cluster.files import write_atomically
from draco_local.cluster.pki import Authority, Credential, signing_key
from draco_local.cluster.process import Processes
from draco_local.cluster.programs import versions

ETCD, APISERVER = "etcd", "kube-apiserver"
CONTROLLER_MANAGER, SCHEDULER = "kube-controller-manager", "kube-scheduler"
STORE = (ETCD, APISERVER)
ALL = (ETCD, APISERVER, CONTROLLER_MANAGER, SCHEDULER)

SERVICE_CIDR = "10.96.0.0/16"
SERVICE_IP = "10.96.0.1"
_ETCD_SOCKET = "unix://client:0"  # a file called "client:0" in the process's folder: etcd insists on a port
_ETCD_PEER_SOCKET = "unix://peer:0"
_READY_WITHIN_S = 90.0
_POLL_S = 0.05
_START_ATTEMPTS = 3


@dataclass(frozen=True)
class Settings:
    """How a control plane is run.

    `address` is where the API server listens; `port` 0 means any free one. `enter` is put before each command line, for
    example to enter a network namespace; `address` must then be reachable from here, and `port` named. `hosts` are further
    names and addresses under which clients reach the API server. `client_qps` limits the controller manager's and the
    scheduler's calls per second. `extra_flags` are appended per component, by its name.
    """

    programs: Mapping[str, Path]
    kubernetes: str = versions.DEFAULT_KUBERNETES
    features: versions.Features = "all"
    address: str = "127.0.0.1"
    port: int = 0
    enter: Sequence[str] = ()
    hosts: Sequence[str] = ()
    client_qps: int = 2000
    extra_flags: Mapping[str, Sequence[str | Path]] = field(default_factory=dict)
    name: str = "draco"


class ControlPlane:
    """A control plane whose state, logs, certificates and records live in one folder.

    `programs` decides what runs: with etcd and kube-apiserver alone there is a store of objects and nothing that acts on
    them; kube-controller-manager and kube-scheduler are started when their paths are given.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder.absolute()
        self.settings = settings
        self.processes = Processes(self.folder)
        self.pki = self.folder / "pki"
        self.kubeconfig = self.folder / "kubeconfig"
        self.port = settings.port

    @property
    def server(self) -> str:
        """The API server's URL; known after `start`."""
        address = self.settings.address
        return f"https://[{address}]:{self.port}" if ":" in address else f"https://{address}:{self.port}"

    @property
    def authority(self) -> Authority:
        """The certificate authority; exists after `start`."""
        return Authority.load((self.pki / "ca.crt").read_bytes(), (self.pki / "ca.key").read_bytes())

    @property
    def admin(self) -> Credential:
        """The administrator's client certificate; exists after `start`."""
        return Credential((self.pki / "admin.crt").read_bytes(), (self.pki / "admin.key").read_bytes())

    def start(self) -> None:
        """Start everything and return when the API server is ready; raises PortInUse or ProcessFailed."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._choose_port()
        self._write_certificates()
        self._start_etcd()
        self._start_apiserver()
        for component in (CONTROLLER_MANAGER, SCHEDULER):
            if component in self.settings.programs:
                self._start_component(component)

    def stop(self) -> None:
        """Stop everything, the API server last and by force: without etcd it does not end when asked."""
        self.processes.stop_each([SCHEDULER, CONTROLLER_MANAGER], grace_s=2.0)
        self.processes.stop(ETCD, grace_s=0.0)
        self.processes.stop(APISERVER, grace_s=0.0)

    def kill(self, name: str) -> None:
        """Kill one component, as a failing machine would; `start_again` starts it."""
        self.processes.stop(name, grace_s=0.0)

    def start_again(self, name: str, *, extra_flags: Sequence[str] = ()) -> None:
        """Start a component that was killed, with the same state, certificates and port; `extra_flags` come last.

        Waits for an API server until it is ready, but for no other component. Raises ProcessFailed.
        """
        if name == ETCD:
            self._start_etcd()
        elif name == APISERVER:
            argv = [*self._apiserver_argv(), *self._extra(APISERVER), *extra_flags]
            self.processes.start(APISERVER, argv, directory=self.folder / "etcd")
            self._wait_until_ready()
        else:
            self._start_component(name)

    def destroy(self) -> None:
        """Stop everything and remove the folder."""
        self.stop()
        self.processes.stop_strays()
        shutil.rmtree(self.folder, ignore_errors=True)

    def write_kubeconfig(self, path: Path, user: str, *, organizations: Sequence[str] = ()) -> None:
        """Write a kubeconfig for a new client certificate of `user`."""
        kubeconfig.write(
            path,
            name=self.settings.name,
            server=self.server,
            authority=(self.pki / "ca.crt").read_bytes(),
            credential=self.authority.issue(user, organizations=organizations),
        )

    def _write_certificates(self) -> None:
        self.pki.mkdir(exist_ok=True, mode=0o700)
        authority = Authority.create(f"{self.settings.name}-ca")
        front_proxy = Authority.create(f"{self.settings.name}-front-proxy-ca")
        tokens = signing_key()
        hosts = dict.fromkeys(
            [
                *(self.settings.address, "127.0.0.1", "localhost", SERVICE_IP),
                *("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"),
                *self.settings.hosts,
            ]
        )
        written = {
            "ca": Credential(authority.certificate, authority.key),
            "front-proxy-ca": Credential(front_proxy.certificate, front_proxy.key),
            "front-proxy-client": front_proxy.issue("front-proxy-client"),
            "apiserver": authority.issue("kube-apiserver", hosts=hosts),
            "kubelet-client": authority.issue("kube-apiserver-kubelet-client", organizations=["system:masters"]),
            "admin": authority.issue("kubernetes-admin", organizations=["system:masters"]),
        }
        for name, credential in written.items():
            write_atomically(self.pki / f"{name}.crt", credential.certificate)
            write_atomically(self.pki / f"{name}.key", credential.key)
        write_atomically(self.pki / "sa.key", tokens.private)
        write_atomically(self.pki / "sa.pub", tokens.public)

    def _start_etcd(self) -> None:
        home = self.folder / "etcd"
        home.mkdir(exist_ok=True, mode=0o700)
        argv: list[str | Path] = [
            *self.settings.enter,
            self.settings.programs[ETCD],
            *("--data-dir", "data", "--unsafe-no-fsync"),
            *("--listen-client-urls", _ETCD_SOCKET, "--advertise-client-urls", _ETCD_SOCKET),
            *("--listen-peer-urls", _ETCD_PEER_SOCKET, "--initial-advertise-peer-urls", _ETCD_PEER_SOCKET),
            *("--initial-cluster", f"default={_ETCD_PEER_SOCKET}", "--log-level", "warn"),
        ]
        self.processes.start(ETCD, [*argv, *self._extra(ETCD)], directory=home)

    def _start_apiserver(self) -> None:
        for attempt in range(1, _START_ATTEMPTS + 1):
            argv = [*self._apiserver_argv(), *self._extra(APISERVER)]
            self.processes.start(APISERVER, argv, directory=self.folder / "etcd")
            kubeconfig.write(
                self.kubeconfig,
                name=self.settings.name,
                server=self.server,
                authority=(self.pki / "ca.crt").read_bytes(),
                credential=self.admin,
            )
            try:
                self._wait_until_ready()
            except ProcessFailed:
                port_was_taken = "address already in use" in self.processes.log(APISERVER).read_text(errors="replace")
                if not port_was_taken:
                    raise
                if self.settings.port or attempt == _START_ATTEMPTS:
                    raise PortInUse(_port_in_use(self.settings.address, self.port)) from None
                self.processes.log(APISERVER).unlink()
                self._choose_port()
            else:
                return

    def _choose_port(self) -> None:
        address = self.settings.address
        if not self.settings.port:
            self.port = ports.pick(address)
        elif not ports.is_free(address, self.settings.port):
            raise PortInUse(_port_in_use(address, self.settings.port))

    def _apiserver_argv(self) -> list[str | Path]:
        settings, pki = self.settings, self.pki
        minor = versions.minor_of(settings.kubernetes, settings.features)
        loopback = settings.address.startswith("127.") or settings.address == "::1"
        # Without the controller manager nobody creates service accounts, and this plugin refuses pods without one.
        accounts = () if CONTROLLER_MANAGER in settings.programs else ("--disable-admission-plugins", "ServiceAccount")
        return [
            *settings.enter,
            settings.programs[APISERVER],
            *("--etcd-servers", _ETCD_SOCKET),
            *("--bind-address", settings.address, "--advertise-address", settings.address),
            *("--secure-port", str(self.port), "--endpoint-reconciler-type", "none" if loopback else "lease"),
            *("--cert-dir", pki, "--tls-cert-file", pki / "apiserver.crt"),
            *("--tls-private-key-file", pki / "apiserver.key", "--client-ca-file", pki / "ca.crt"),
            *("--kubelet-client-certificate", pki / "kubelet-client.crt"),
            *("--kubelet-client-key", pki / "kubelet-client.key", "--kubelet-preferred-address-types", "InternalIP"),
            *("--requestheader-client-ca-file", pki / "front-proxy-ca.crt"),
            *("--requestheader-allowed-names", "front-proxy-client"),
            *("--requestheader-username-headers", "X-Remote-User", "--requestheader-group-headers", "X-Remote-Group"),
            *("--requestheader-extra-headers-prefix", "X-Remote-Extra-"),
            *("--proxy-client-cert-file", pki / "front-proxy-client.crt"),
            *("--proxy-client-key-file", pki / "front-proxy-client.key"),
            *("--service-account-issuer", "https://kubernetes.default.svc.cluster.local"),
            *("--service-account-key-file", pki / "sa.pub", "--service-account-signing-key-file", pki / "sa.key"),
            *("--service-cluster-ip-range", SERVICE_CIDR, "--authorization-mode", "Node,RBAC"),
            *("--enable-admission-plugins", "NodeRestriction", "--allow-privileged=true"),
            *accounts,
            "--enable-aggregator-routing=true",
            *minor.api_flags,
            *minor.gates_flags,
        ]

    def _wait_until_ready(self) -> None:
        context = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
        context.load_cert_chain(self.pki / "admin.crt", self.pki / "admin.key")
        deadline = time.monotonic() + _READY_WITHIN_S
        while not self._ready(context):
            for name in STORE:
                if not self.running(name):
                    said = self.processes.last_words(name) or "it wrote nothing"
                    raise ProcessFailed(
                        f"The process {name} stopped right after its start: {said} (its log is {self.processes.log(name)})"
                    )
            if time.monotonic() > deadline:
                raise ProcessFailed(
                    f"The API server at {self.server} was not ready within {_READY_WITHIN_S:.0f} s: "
                    f"see {self.processes.log(APISERVER)}."
                )
            time.sleep(_POLL_S)

    def running(self, name: str) -> bool:
        """Whether the component called `name` was started and still runs."""
        return any(record.name == name and self.processes.alive(record) for record in self.processes.records())

    def _ready(self, context: ssl.SSLContext) -> bool:
        connection = http.client.HTTPSConnection(self.settings.address, self.port, context=context, timeout=5.0)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _start_component(self, component: str) -> None:
        access = self.folder / f"{component}.kubeconfig"
        self.write_kubeconfig(access, f"system:{component}")
        argv: list[str | Path] = [
            *self.settings.enter,
            self.settings.programs[component],
            *("--secure-port", "0"),
            *("--authentication-kubeconfig", access, "--authorization-kubeconfig", access),
            *versions.minor_of(self.settings.kubernetes, self.settings.features).gates_flags,
        ]
        if component == SCHEDULER:
            argv += ["--config", self._write_scheduler_config(access)]
        else:
            argv += [
                *("--kubeconfig", access, "--leader-elect=false", "--use-service-account-credentials"),
                *("--service-account-private-key-file", self.pki / "sa.key", "--root-ca-file", self.pki / "ca.crt"),
                *(
                    "--cluster-signing-cert-file",
                    self.pki / "ca.crt",
                    "--cluster-signing-key-file",
                    self.pki / "ca.key",
                ),
                *("--kube-api-qps", str(self.settings.client_qps)),
                *("--kube-api-burst", str(2 * self.settings.client_qps)),
            ]
        self.processes.start(component, [*argv, *self._extra(component)])

    def _extra(self, component: str) -> Sequence[str | Path]:
        return self.settings.extra_flags.get(component, ())

    def _write_scheduler_config(self, access: Path) -> Path:
        path = self.folder / "kube-scheduler.yaml"
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {
                "kubeconfig": str(access),
                "qps": self.settings.client_qps,
                "burst": 2 * self.settings.client_qps,
            },
        }
        write_atomically(path, yaml.safe_dump(config).encode())
        return path


def _port_in_use(address: str, port: int) -> str:
    return f"Port {port} on {address} is in use: stop what listens there or name another port."
