"""The agent machine's layer of memory limits: the runtime's hook, cgroups of containers, and what must be true of limits.

Owns the cgroups, whose folders are what the simulated driver takes for version 2, and the checks. A claim is limited if the slice
from which it was allocated said that the driver holds its shares. Shares no code with the product: it reads JSON.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from draco_local.simulator.gpus import state
from draco_local.simulator.gpus.gpu_state import CgroupMemoryLimit
from tests.adversary.agent.node import NUMBERS, accident, fired
from tests.adversary.agent.observer import PREFIX
from tests.adversary.agent.scheduler import Claim
from tests.adversary.agent.sharing import Sharing
from tests.adversary.agent.surroundings import CGROUP, OWN_CGROUP

FIRST_WITH_LIMITS = 615
NO_LIMIT = CgroupMemoryLimit().hard
_MARK = "cgroup.controllers"
_CONTAINER = 64
"""The length of a container's ID."""
_VARIABLE = "NVIDIA_GPU_MEMORY_LIMIT="


class MemoryLimits(Sharing):
    """Steps for limits, and the checks."""

    def _make_cgroups(self) -> None:
        _cgroup(self.folder / CGROUP)
        _cgroup(self.folder / OWN_CGROUP)

    def _started(self, claim: Claim, path: str) -> bool:
        """The runtime makes a container's cgroup and runs the hooks of its claim's spec. Whether its program may start."""
        folder = self.folder / CGROUP / path.lstrip("/")
        _cgroup(folder)
        edits = [each["containerEdits"] for each in self._spec(claim)]
        limits = [
            int(one.removeprefix(_VARIABLE)) for each in edits for one in each["env"] if one.startswith(_VARIABLE)
        ]
        hooks = [hook["args"] for each in edits for hook in each.get("hooks", ()) if "--gpu-id" in hook["args"]]
        with state.mutate(self.path) as node:
            for arguments in hooks:
                gpu = next((gpu for gpu in node.gpus if gpu.uuid == arguments[arguments.index("--gpu-id") + 1]), None)
                if gpu is None or gpu.mig_current or not _limits(node.driver.version):
                    fired["container does not start without its limit"] += 1
                    return False
                gpu.memory_limits[str(folder)] = CgroupMemoryLimit(hard=limits[-1] << 20)
        fired["container with a memory limit"] += bool(hooks)
        return True

    @accident(pick=NUMBERS)
    def limit_by_hand(self, pick: int) -> None:
        """Somebody takes the memory limit of a container away."""
        with state.mutate(self.path) as node:
            found = [
                (gpu, name) for gpu in node.gpus for name, limit in gpu.memory_limits.items() if limit.hard != NO_LIMIT
            ]
            if found:
                fired["limit taken away by hand"] += 1
                gpu, name = found[pick % len(found)]
                gpu.memory_limits[name].hard = NO_LIMIT

    def _containers_end(self) -> None:
        """No process is left: the runtime removes the cgroups, and the driver forgets their limits."""
        shutil.rmtree(self.folder / CGROUP / "kubepods", ignore_errors=True)

    def _spec(self, claim: Claim) -> list[Any]:
        """The devices of a claim's spec; none if there is no spec."""
        file = self.folder / "cdi" / f"{PREFIX}{claim.uid}.json"
        return list(json.loads(file.read_bytes())["devices"]) if file.exists() else []

    def _check_limits_told(self) -> None:
        """A spec says how much memory the driver is to give its containers, if the claim was promised that, else nothing."""
        for claim in self.claims.values():
            if not claim.told or claim.leaving:
                continue
            wanted = {f"{one.device}-{claim.uid}": claim.limits_mib[one.device] for one in claim.results if one.limited}
            for each in self._spec(claim):
                name, edits = each["name"], each["containerEdits"]
                limit = next((mib for start, mib in wanted.items() if name.startswith(start)), None)
                told = [one.removeprefix(_VARIABLE) for one in edits["env"] if one.startswith(_VARIABLE)]
                hooked = any("--gpu-id" in hook["args"] for hook in edits.get("hooks", ()))
                fired["limit told"] += limit is not None
                is_right = told == ([] if limit is None else [str(limit)]) and hooked is (limit is not None)
                assert is_right, f"{claim.name} is to have {limit} MiB of {name}, and its containers are told of {told}"

    def _laws_at_rest(self) -> list[Callable[[], None]]:
        return [*super()._laws_at_rest(), *([self.check_limits] if self._works() else [])]

    def check_limits(self) -> None:
        """At rest each container of a limited claim has the limit, or it was said why not. No other cgroup has one."""
        hardware = self._hardware()
        claims = {claim.name: claim for claim in self.claims.values() if claim.told and not claim.leaving}
        said = {gpu for gpu, _ in self._up().agent.parts.limit_keeper._told}
        for gpu in hardware["gpus"]:
            limits = {Path(name): one["hard"] for name, one in gpu["memory_limits"].items() if Path(name).is_dir()}
            assert all(not one["soft"] for one in gpu["memory_limits"].values()), "a soft limit stays after its cgroup"
            strange = {folder for folder, hard in limits.items() if hard != NO_LIMIT and len(folder.name) != _CONTAINER}
            assert not strange, f"cgroups have limits that are no container's: {strange}"
            for process in gpu["processes"]:
                claim, folder = claims.get(process["hostname"]), self.folder / CGROUP / process["cgroup"].lstrip("/")
                limited = [
                    mib
                    for device, mib in (claim.limits_mib if claim else {}).items()
                    if claim and claim.boards[device] == gpu["uuid"]
                ]
                if not limited or not process["listed"] or gpu["error"]:
                    continue
                fired["limit at rest"] += 1
                assert limits.get(folder) == limited[0] << 20 or gpu["uuid"] in said, (
                    f"{process['hostname']} may have {limited[0]} MiB of {gpu['uuid']}, and its limit is {limits.get(folder)}"
                )


def _limits(version: str) -> bool:
    return int(version.partition(".")[0]) >= FIRST_WITH_LIMITS


def _cgroup(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    top = next(each for each in folder.parents if each.name == CGROUP) if folder.name != CGROUP else folder
    for each in (folder, *folder.parents):
        (each / _MARK).touch()
        if each == top:
            return
