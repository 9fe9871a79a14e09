"""The first process of a real node: it makes the node's file system, starts the node's services, and keeps them running.

Runs as PID 1 of fresh mount, pid, host-name and IPC namespaces inside the node's network namespace, so its death takes the
whole node with it, like pulling a plug. Imports only the standard library, because every node runs one of these. Must
not know Kubernetes: what to mount and what to run is in the node's plan, a JSON file.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

RUN_FOLDER: Final = Path("/run/draco")
"""Inside the node: one `<service>.pid` for each service that runs."""

_RESTART_AFTER_S: Final = (0.5, 1.0, 2.0, 5.0)
"""Before the first, second, ... start in a row; a service that ran for _STEADY_S begins at the first again."""

_STEADY_S: Final = 10.0
_TICK_S: Final = 0.1
_CONTAINERD_WITHIN_S: Final = 30.0
_SHARED_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty", "kmsg", "fuse")
_OWN_CHANGES: Final = ("/etc", "/var")
_KUBELET_SYSCTLS: Final = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
)
_NULL_DEVICE: Final = (1, 3)


@dataclass(frozen=True, slots=True)
class Service:
    """A program that is started again whenever it ends. It first waits for the file `after`, if one is named."""

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    after: str = ""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Everything the first process needs to know.

    `disk` holds what survives a power-off: each of `kept` (absolute paths) is a folder in it. `files` are written at each
    boot, after the mounts. `devices` are made below /dev and swallow what is written to them. `images` is a folder of
    archives for `import_argv`; each is imported once.
    """

    name: str
    disk: str
    kept: Sequence[str]
    files: Mapping[str, str]
    devices: Sequence[str]
    runtime: Service
    services: Sequence[Service]
    ready_argv: Sequence[str]
    images: str
    import_argv: Sequence[str]

    @classmethod
    def from_json(cls, text: str) -> "NodePlan":
        """Read what `config.plan_json` wrote."""
        document: dict[str, Any] = json.loads(text)
        document["runtime"] = Service(**document["runtime"])
        document["services"] = [Service(**service) for service in document["services"]]
        return cls(**document)


def main(plan_file: str) -> None:
    """Boot the node that `plan_file` describes; returns only by ending the node."""
    plan = NodePlan.from_json(Path(plan_file).read_text())
    if os.getpid() != 1:
        sys.exit(
            "draco_local.cluster.realnode.init must be the first process of a pid namespace: use draco cluster up --real-nodes."
        )
    socket.sethostname(plan.name)
    _mount_file_system(plan)
    Supervisor(plan).run()


class Supervisor:
    """Starts the services, in order, and starts each again a moment after it ended; reaps every orphan."""

    def __init__(self, plan: NodePlan, *, run_folder: Path = RUN_FOLDER) -> None:
        self._plan = plan
        self._run_folder = run_folder
        self._logs = Path(plan.disk) / "logs"
        self._running: dict[int, Service] = {}
        self._started: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._due: dict[str, tuple[float, Service]] = {}

    def run(self) -> None:
        """Run the node until it is killed."""
        self._start(self._plan.runtime)
        self._wait_for_runtime()
        self._import_images()
        self._due = {service.name: (0.0, service) for service in self._plan.services}
        while True:
            self._start_what_is_due()
            self._reap()
            time.sleep(_TICK_S)

    def _start(self, service: Service) -> None:
        self._due.pop(service.name, None)
        log = self._logs / f"{service.name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                service.argv,
                env={**os.environ, **service.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
            )
        self._running[process.pid] = service
        self._started[service.name] = time.monotonic()
        process.returncode = 0  # reaped below with every other child: Popen must not wait for it too
        (self._run_folder / f"{service.name}.pid").write_text(str(process.pid))
        _say(f"{service.name} started as {process.pid}")

    def _start_what_is_due(self) -> None:
        now = time.monotonic()
        for when, service in list(self._due.values()):
            if when <= now and (not service.after or Path(service.after).exists()):
                self._start(service)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                service = self._running.pop(pid, None)
                if service:
                    _say(f"{service.name} ended with {os.waitstatus_to_exitcode(status)}")
                    (self._run_folder / f"{service.name}.pid").unlink(missing_ok=True)
                    self._due[service.name] = (self._restart_at(service.name), service)

    def _restart_at(self, name: str) -> float:
        now = time.monotonic()
        steady = now - self._started[name] >= _STEADY_S
        failures = 0 if steady else self._failures.get(name, 0)
        self._failures[name] = failures + 1
        return now + _RESTART_AFTER_S[min(failures, len(_RESTART_AFTER_S) - 1)]

    def _wait_for_runtime(self) -> None:
        deadline = time.monotonic() + _CONTAINERD_WITHIN_S
        while subprocess.run(self._plan.ready_argv, check=False, capture_output=True).returncode:
            self._reap()
            self._start_what_is_due()
            if time.monotonic() > deadline:
                sys.exit(f"{self._plan.runtime.name} did not answer within {_CONTAINERD_WITHIN_S:.0f} s")
            time.sleep(_TICK_S)

    def _import_images(self) -> None:
        imported = Path(self._plan.disk) / "imported"
        imported.mkdir(exist_ok=True)
        for archive in sorted(Path(self._plan.images).glob("*.tar")):
            if (imported / archive.name).exists():
                continue
            done = subprocess.run([*self._plan.import_argv, archive], check=False, capture_output=True, text=True)
            _say(f"import of {archive.name}: {done.stderr.strip() if done.returncode else 'done'}")
            if done.returncode == 0:
                (imported / archive.name).touch()


def _mount_file_system(plan: NodePlan) -> None:
    """Give the node its own disk, /run, /dev and boot id; everything else is the host's, seen from here."""
    _mount("--make-rshared", "/")
    disk = Path(plan.disk)
    (disk / "logs").mkdir(parents=True, exist_ok=True)
    for top in _OWN_CHANGES:
        _mount_over(top, disk)
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for path in plan.kept:
        own = disk / "fs" / path.lstrip("/")
        own.mkdir(parents=True, exist_ok=True)
        Path(path).mkdir(parents=True, exist_ok=True)
        _mount("--bind", str(own), path)
    for folder in (RUN_FOLDER, Path("/run/netns"), Path("/run/cdi"), Path("/run/lock")):
        folder.mkdir(parents=True)
    _mount_devices(plan.devices)
    _take_new_boot_id()
    _keep_sysctls()
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    for name, content in plan.files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content)


def _mount_over(top: str, disk: Path) -> None:
    """Let the node see the host's `top` and keep its own changes to it on its disk: the host gets none of them."""
    upper, work = disk / "changes" / top.lstrip("/"), disk / "changes" / f".{top.lstrip('/')}"
    upper.mkdir(parents=True, exist_ok=True)
    work.mkdir(exist_ok=True)
    _mount("-t", "overlay", "-o", f"lowerdir={top},upperdir={upper},workdir={work}", "overlay", top)


def _mount_devices(devices: Sequence[str]) -> None:
    host_devices = Path("/run/draco-dev")
    host_devices.mkdir()
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(host_devices))
    for name in _SHARED_DEVICES:
        device = Path("/dev", name)
        if device.exists():
            status = device.stat()
            os.mknod(host_devices / name, status.st_mode, status.st_rdev)
            (host_devices / name).chmod(status.st_mode & 0o777)
    for name in ("pts", "shm", "mqueue", "net"):
        (host_devices / name).mkdir()
    _mount("-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620,gid=5", "devpts", str(host_devices / "pts"))
    _mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(host_devices / "shm"))
    (host_devices / "ptmx").symlink_to("pts/ptmx")
    (host_devices / "fd").symlink_to("/proc/self/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        (host_devices / name).symlink_to(f"/proc/self/fd/{number}")
    for name in devices:
        device = host_devices / name
        device.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(device, 0o666 | 0o020000, os.makedev(*_NULL_DEVICE))
        device.chmod(0o666)
    _mount("--rbind", str(host_devices), "/dev")


def _take_new_boot_id() -> None:
    """Give the node a new boot id, as a power cycle does: kubelet and the agent recognise a reboot by it."""
    boot_id = RUN_FOLDER / "boot_id"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    _mount("--bind", str(boot_id), "/proc/sys/kernel/random/boot_id")


def _keep_sysctls() -> None:
    """Kubelet sets these for the whole machine; the node gets a copy to write to, and the machine keeps its own."""
    for name in _KUBELET_SYSCTLS:
        sysctl, copy = Path("/proc/sys", name), RUN_FOLDER / "sysctl" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if sysctl.exists():
            copy.write_text(sysctl.read_text())
            _mount("--bind", str(copy), str(sysctl))


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"mount {' '.join(arguments)}: {done.stderr.strip()}")


def _say(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}", flush=True)  # noqa: T201 - the node's console


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    main(sys.argv[1])
