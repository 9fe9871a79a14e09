"""`draco demo`: what Draco does, told on a local cluster in about a minute.

Owns the story and how it is told. It runs every command that it prints, and prints the command's real output. Leaves nothing
behind unless asked to keep the cluster.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from draco.resources.errors import DracoError
from draco.resources.names import LABEL_REMEDIATES
from draco_local.cluster import data
from draco_local.cluster.attach import JOB_NAMESPACE
from draco_local.cluster.programs import binaries

WAIT_S = 90.0

SUSPECT = """\
apiVersion: resource.k8s.io/v1beta2
kind: DeviceTaintRule
metadata: {{name: suspect-gpu}}
spec:
  deviceSelector: {{driver: gpu.nvidia.com, pool: {pool}, device: {device}}}
  taint: {{key: example.com/suspect, value: fan-noise, effect: NoSchedule}}
"""

MAINTENANCE = """\
apiVersion: draco.dev/v1alpha1
kind: DeviceMaintenance
metadata: {{name: mend-board}}
spec:
  reason: reseat the board
  deviceSelector: {{driver: gpu.nvidia.com, pool: {pool}, device: {device}}}
"""

NEWCOMER = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: newcomer}}
spec: {{devices: {{requests: [{{name: gpu, exactly: {{deviceClassName: gpu.nvidia.com}}}}]}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: newcomer}}
spec:
  nodeSelector: {{kubernetes.io/hostname: {node}}}
  resourceClaims: [{{name: gpu, resourceClaimName: newcomer}}]
  containers: [{{name: main, image: busybox, resources: {{claims: [{{name: gpu}}]}}}}]
"""

TOO_BIG = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: too-big}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 9}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: too-big}
spec:
  resourceClaims: [{name: gpu, resourceClaimName: too-big}]
  containers: [{name: main, image: busybox, resources: {claims: [{name: gpu}]}}]
"""


FROM_AN_ARTICLE = """\
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaim
metadata: {name: big}
spec:
  devices:
    requests:
    - name: gpu
      deviceClassName: gpu.nvidia.com
      selectors:
      - cel: {expression: "device.capacity['gpu.nvidia.com'].memory >= quantity('40Gi')"}
"""


class DemoError(DracoError):
    """A step of the demo failed."""


@click.command()
@click.option("--name", default="demo", show_default=True, help="Name of its cluster.")
@click.option("--keep", is_flag=True, help="Keep the cluster afterwards, to try things out.")
def command(name: str, keep: bool) -> None:
    """Show on a local cluster what Draco does, in about a minute."""
    click.secho("Draco makes GPUs under Kubernetes Dynamic Resource Allocation (DRA) operable.", bold=True)
    say("This demo runs a real Kubernetes on this machine: only the GPUs are simulated, below NVML.")
    say("Each line after a $ is a command that really runs; its real output follows.")
    chapter("A cluster with two GPU nodes, eight H100 each")
    run_draco("cluster", "up", "--name", name, "--nodes", "2", "--gpus", "8", "--board", "H100-80GB")
    try:
        with tempfile.TemporaryDirectory(prefix="draco-demo-") as folder:
            tell(DemoScript(name, Path(folder)))
    finally:
        if not keep:
            chapter("Everything is taken down")
            run_draco("cluster", "down", "--name", name)
    if keep:
        say(f"The cluster is still there. Remove it with: draco cluster down --name {name}")
    click.echo()
    click.secho("That was Draco. To try it yourself: draco cluster up, then kubectl and draco status.", bold=True)


class DemoScript:
    """The cluster of one demo, used through kubectl."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.examples = data.examples()
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(draco("cluster", "kubeconfig", "--name", name))
        self._kubectl = binaries.find("kubectl")["kubectl"]

    def kubectl(self, *arguments: str, manifest: str = "") -> str:
        """Run kubectl silently and return its output."""
        done = subprocess.run(
            [str(self._kubectl), "--kubeconfig", str(self.kubeconfig), *arguments],
            input=manifest,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise DemoError(f"kubectl {' '.join(arguments)} failed: {done.stderr.strip()}")
        return done.stdout

    def show(self, *arguments: str) -> None:
        """Run a kubectl command; print it and its output."""
        prompt(shlex.join(("kubectl", *arguments)))
        answer(self.kubectl(*arguments))

    def apply_example(self, folder: str) -> None:
        """Apply one example; print the command and its output."""
        prompt(f"kubectl apply -f manifests/examples/{folder}")
        answer(self.kubectl("apply", "-f", str(self.examples / folder)))

    def apply(self, manifest: str) -> None:
        """Apply a manifest; print the command, the manifest and the output."""
        prompt("kubectl apply -f -", manifest)
        answer(self.kubectl("apply", "-f", "-", manifest=manifest))

    def show_draco(self, *arguments: str, manifest: str = "", refuses: bool = False) -> None:
        """Run a draco command; print it and its output. With `refuses` it must exit with status 1."""
        prompt(shlex.join(("draco", *arguments)).replace(str(self.examples), "manifests/examples"), manifest)
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        answer(draco(*arguments, manifest=manifest, environment=environment, status=1 if refuses else 0))

    def value(self, kind: str, name: str, path: str) -> str:
        """Read one field of an object."""
        return self.kubectl("get", kind, name, "-o", f"jsonpath={{{path}}}")

    def until(self, what: str, check: Callable[[], bool]) -> None:
        """Wait until `check` returns True; raises DemoError after WAIT_S seconds."""
        deadline = time.monotonic() + WAIT_S
        while not check():
            if time.monotonic() > deadline:
                raise DemoError(f"After {WAIT_S:.0f} s it is still not true that {what}: the demo stops here.")
            time.sleep(0.2)

    def until_running(self, pod: str) -> None:
        """Wait until a pod runs."""
        self.until(f"pod {pod} runs", lambda: self.value("pod", pod, ".status.phase") == "Running")

    def until_deployed(self, app: str) -> str:
        """Wait until a Deployment's one pod runs, and return its name."""
        running: list[str] = []

        def look() -> bool:
            pods = json.loads(self.kubectl("get", "pods", "-l", f"app={app}", "-o", "json"))["items"]
            lively = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
            running[:] = [pod["metadata"]["name"] for pod in lively if pod["status"].get("phase") == "Running"]
            return len(running) == len(lively) == 1

        self.until(f"the pod of {app} runs", look)
        return running[0]

    def claim_of(self, pod: str) -> str:
        """The claim that was created for a pod."""
        return self.value("pod", pod, ".status.resourceClaimStatuses[0].resourceClaimName")

    def repair(self) -> str:
        """The name of the maintenance that the operator has opened; "" if there is none yet."""
        requests = json.loads(self.kubectl("get", "devicemaintenances", "-l", LABEL_REMEDIATES, "-o", "json"))
        return "".join(each["metadata"]["name"] for each in requests["items"][:1])

    def until_phase(self, request: str, phase: str) -> None:
        """Wait until a maintenance request has reached a phase."""
        self.until(f"{request} is {phase}", lambda: self.value("dm", request, ".status.phase") == phase)

    def until_published(self) -> None:
        """Wait until no pool of devices is between two generations of its slices."""

        def complete() -> bool:
            pools: dict[str, list[dict[str, int]]] = {}
            for item in json.loads(self.kubectl("get", "resourceslices", "-o", "json"))["items"]:
                pool = item["spec"]["pool"]
                pools.setdefault(pool["name"], []).append(pool)
            return all(
                len({each["generation"] for each in parts}) == 1 and len(parts) == parts[0]["resourceSliceCount"]
                for parts in pools.values()
            )

        self.until("all slices of each pool are published", complete)

    def device_of(self, claim: str) -> tuple[str, str]:
        """Pool and name of the one device of an allocated claim."""
        result = ".status.allocation.devices.results[0]"
        return self.value("resourceclaim", claim, f"{result}.pool"), self.value(
            "resourceclaim", claim, f"{result}.device"
        )


def tell(story: DemoScript) -> None:
    """The story itself."""
    chapter("Every node publishes its GPUs")
    story.show("get", "gpunodes")

    chapter("A pod asks for one GPU with at least 40 GiB, and gets it")
    story.apply_example("one-gpu-by-memory")
    story.until_running("one-gpu")
    pool, device = story.device_of("one-gpu")
    story.show("get", "resourceclaim,pod", "-o", "wide")
    say(f"The claim holds {device} of {pool}: allocated by the scheduler, prepared and injected by Draco's agent.")

    chapter("That GPU looks suspect: a taint rule keeps new work away from it")
    story.apply(SUSPECT.format(pool=pool, device=device))
    say("The pod on it keeps running; a pod that asks that node for a GPU now gets another one:")
    story.apply(NEWCOMER.format(node=pool))
    story.until_running("newcomer")
    story.show("get", "pods", "-o", "wide")
    say(f"The newcomer's claim holds {story.device_of('newcomer')[1]}, not {device}.")
    story.kubectl("delete", "devicetaintrule", "suspect-gpu")

    chapter("A board sits badly: one GPU goes into maintenance, and the node keeps working")
    story.apply(MAINTENANCE.format(pool=pool, device=device))
    story.until_phase("mend-board", "Isolated")
    story.show("get", "devicemaintenances")
    say("Isolated: no new pod gets the GPU, and the request says which pod still holds it. That pod ends:")
    prompt("kubectl delete pod one-gpu")
    answer(story.kubectl("delete", "pod", "one-gpu", "--grace-period=1"))
    story.until_phase("mend-board", "InMaintenance")
    story.show("get", "devicemaintenances")
    story.show("get", "nodes")
    say("InMaintenance: work on the GPU can start. The node was never cordoned, and its other seven GPUs take pods.")

    chapter("A pod asks for more GPUs than a node has: its claim says why")
    story.apply(TOO_BIG)
    reason = pending_reason(story)
    prompt("kubectl events --for resourceclaim/too-big")
    answer(reason)

    chapter("The whole picture on one screen")
    story.show_draco("status")

    chapter("The board is back in its slot: the GPU comes back")
    story.show_draco("maintain", "finish", "mend-board")
    story.until_phase("mend-board", "Completed")
    story.show("get", "devicemaintenances")

    tell_of_faults(story)
    tell_of_parts(story)


def tell_of_faults(story: DemoScript) -> None:
    """A fault, and how the GPU is repaired."""
    chapter("The memory of a GPU fails under a running pod: from the XID to the taint, the drain, the reset and back")
    story.apply_example("repair-one-gpu")
    pod = story.until_deployed("training")
    pool, device = story.device_of(story.claim_of(pod))
    say(
        f"Pod {pod} has {device} of {pool}. Now NVML reports an uncorrectable memory error there, and asks for a reset:"
    )
    gpu = (pool, device.removeprefix("gpu-"))
    story.show_draco("cluster", "gpu", "xid", "--name", story.name, *gpu, "48")
    story.show_draco("cluster", "gpu", "recovery", "--name", story.name, *gpu, "reset")
    story.until("the operator has opened a maintenance", lambda: bool(story.repair()))
    repair = story.repair()
    # Not the phase: the Job takes only five seconds, so on a busy machine the demo may miss it.
    story.until(f"{repair} has a free GPU", lambda: bool(story.value("dm", repair, ".status.startedAt")))
    story.show_draco("health")
    story.show("get", "devicemaintenances,maintenancebudgets")
    story.until_deployed("training")
    story.show("get", "pods", "-o", "wide", "-l", "app=training")
    say(
        f"The agent tainted {device} at once; the policy had it drained, so its pod runs on another GPU, and a Job resets it."
    )
    say("Simulated nodes run no containers, so the demo does the Job's work by hand:")
    story.until("the Job has a pod", lambda: bool(story.kubectl("get", "pods", "-n", JOB_NAMESPACE, "-o", "name")))
    story.show_draco("cluster", "gpu", "reset", "--name", story.name, *gpu)
    story.until_phase(repair, "Completed")
    story.show("get", "devicemaintenances")
    story.show_draco("health")
    say(
        "The GPU returned to service only after its agent found it healthy. The node and its other GPUs worked all the time."
    )
    story.kubectl("delete", "-f", str(story.examples / "repair-one-gpu"), "--wait=false")


def tell_of_parts(story: DemoScript) -> None:
    """The end: a part of a GPU, a what-if question, and a manifest that is checked."""
    chapter("A small model needs part of a GPU: Draco divides one for it when its pod starts")
    story.apply_example("mig-by-profile")
    story.until_running("small-model")
    pool, device = story.device_of("small-part")
    story.show_draco("layout", "show", pool)
    say(f"The claim holds {device}. The scheduler chose the place; the rest of that GPU stays free for other pods.")

    chapter("What if that GPU were suspect, too: is there room for forty more of these?")
    small_model = story.examples / "mig-by-profile" / "pod.yaml"
    story.until_published()
    tainted = f"suspect:NoSchedule@gpu.nvidia.com/{pool}/{device.split('-mig-')[0]}"
    story.show_draco("simulate", "-f", str(small_model), "--copies", "40", "--with-taint", tainted)

    chapter("A manifest from an old article, checked before it reaches the cluster")
    story.show_draco("lint", "-f", "-", manifest=FROM_AN_ARTICLE, refuses=True)


def pending_reason(story: DemoScript) -> str:
    """Wait for the Event on the claim, and return it."""
    said: list[str] = []

    def look() -> bool:
        said[:] = [story.kubectl("events", "--for", "resourceclaim/too-big")]
        return "too-big" in said[0]

    story.until("an Event says why the claim waits", look)
    return said[0]


def run_draco(*arguments: str) -> None:
    """Print and run a draco command, which writes its output itself."""
    prompt("draco " + " ".join(arguments))
    done = subprocess.run([sys.executable, "-m", "draco", *arguments], check=False, env=os.environ)
    if done.returncode != 0:
        raise DemoError(f"draco {' '.join(arguments)} failed; see its output above.")


def draco(*arguments: str, manifest: str = "", environment: Mapping[str, str] | None = None, status: int = 0) -> str:
    """Return the output of a draco command, which must exit with `status`."""
    done = subprocess.run(
        [sys.executable, "-m", "draco", *arguments],
        input=manifest,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode != status:
        raise DemoError(f"draco {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout


def chapter(title: str) -> None:
    """Begin a chapter."""
    click.echo()
    click.secho(f"== {title}", bold=True, fg="cyan")


def say(text: str) -> None:
    """Print a sentence of the story."""
    click.echo(text)


def prompt(command_line: str, manifest: str = "") -> None:
    """Print a command as it is typed, with its standard input."""
    click.secho(f"$ {command_line}{' <<EOF' if manifest else ''}", fg="green")
    if manifest:
        click.secho(manifest.rstrip(), dim=True)
        click.echo("EOF")
    sys.stdout.flush()


def answer(output: str) -> None:
    """Print the output of a command."""
    for line in output.rstrip().splitlines():
        click.echo(f"  {line}".rstrip())
