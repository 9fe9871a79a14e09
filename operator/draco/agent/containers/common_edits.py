"""The edits that every container gets now: the toolkit's, or our own with the reason.

Owns the choice, which is repeated when another driver or toolkit is installed. The toolkit is never asked while kubelet waits:
our own edits apply until its first answer. All methods of `CommonEdits` block, `current` only on a few files.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from draco.agent.containers import driver_files, limit_library, toolkit
from draco.agent.containers.edits import ContainerEdits
from draco.agent.containers.limit_library import LimitLibrary
from draco.agent.containers.toolkit import Program, ToolkitFailed
from draco.agent.errors import PrepareError
from draco.agent.hardware.driver_root import DriverRoot, InstalledDriver
from draco.agent.state.facts import LimitLibraryState
from draco.agent.state.node import NodeState
from draco.agent.threads import DaemonExecutor
from draco.kube.clock import Clock
from draco.resources.names import GpuUuid

log = structlog.get_logger()

VOID: Final = "NVIDIA_VISIBLE_DEVICES=void"
"""Tells NVIDIA's own runtime hook to add nothing."""


def gives_cuda(edits: ContainerEdits) -> bool:
    """Whether a container finds the driver's CUDA library."""
    return any(Path(each.host_path).name.startswith("libcuda.so.") for each in edits.mounts)


class LimitImpossible(PrepareError):
    """Nothing can hold a container to a memory limit, as the end of a sentence."""


class _Found(NamedTuple):
    """The edits for an installed driver and its version, from these programs of the toolkit."""

    driver: InstalledDriver
    version: str
    programs: tuple[Program, ...]
    edits: ContainerEdits


class CommonEdits:
    """What containers get of the driver below `root`; nothing without `root`. The node must see `hook_folder` too.

    `loaded` is the version of the loaded kernel modules, "" if unknown; `library` is the path of the library that limits memory.
    """

    def __init__(
        self,
        root: DriverRoot | None,
        *,
        hook_folder: Path,
        library: str = "",
        loaded: Callable[[], str] = lambda: "",
    ) -> None:
        self.library: Final = LimitLibrary(path=library, root=root)
        self._root = root
        self._loaded = loaded
        self._hook_folder = hook_folder
        self._found: _Found | None = None
        self.problem: str | None = None
        """Why the edits are our own, as a sentence; "" if they are the toolkit's, None while that is unknown."""

    def current(self) -> ContainerEdits:
        """The edits that work now: a container does not start if a file of them is missing.

        Edits of a replaced driver are not used, even in part: our own apply until the toolkit is asked again.
        """
        driver, last = self._driver(), self._found
        found = last.edits if last is not None and last.driver == driver else self._own(driver)
        hooks = [each for each in found.hooks if self._there(each.path)]
        mounts = [each for each in found.mounts if self._there(each.host_path)]
        return ContainerEdits(env=list(dict.fromkeys([*found.env, VOID])), hooks=hooks, mounts=mounts)

    def limiting(self, gpu: GpuUuid, limit_mib: int) -> ContainerEdits:
        """What limits a container's memory of a GPU. Raises LimitImpossible, or OSError if the hook cannot be copied."""
        driver, why = self._driver(), "the node has no NVIDIA driver now"
        if driver is not None:
            try:
                return toolkit.memory_limit(driver, gpu, limit_mib, keep_in=self._hook_folder)
            except ToolkitFailed as error:
                why = str(error)
        raise LimitImpossible(f"its memory limit cannot be set: {why}. Kubelet tries again.")

    def preloading(self, library: str, limit_mib: int) -> ContainerEdits:
        """What limits a container's memory by this library. Raises OSError if the list of what to preload cannot be written."""
        return limit_library.edits(library, limit_mib, keep_in=self._hook_folder)

    def all_there(self, edits: ContainerEdits) -> bool:
        """Whether the node has every file of these edits, which an earlier version may have written."""
        paths = [*(each.path for each in edits.hooks), *(each.host_path for each in edits.mounts)]
        return all(map(self._there, paths))

    def lacking(self) -> str:
        """Why a container that starts now would find no working driver, as sentences; "" if it would find one."""
        if self._root is None:
            return ""
        if self._driver() is None:
            why = f"The node has no NVIDIA driver below {self._root.host} now; perhaps another one is being installed."
        else:
            why = self.mismatch(self._loaded())
        return why and f"{why} Kubelet tries again."

    def mismatch(self, loaded: str) -> str:
        """Why no container could use a GPU with the installed files, as a sentence; "" if they match what is loaded."""
        driver = self._driver()
        return "" if driver is None else driver.mismatch(loaded)

    def without_cuda(self) -> str:
        """Why no container could compute with the installed driver, as a sentence; "" if it could."""
        if self._root is None or gives_cuda(self.current()):
            return ""
        return f"The NVIDIA driver below {self._root.host} has no libcuda.so: install all of it. Kubelet tries again."

    def outdated(self, driver_version: str) -> bool:
        """Whether the edits must be determined again for this driver version and the node's programs."""
        if self._root is None or self.mismatch(driver_version):
            return False
        now = (self._driver(), driver_version, toolkit.programs(self._root))
        return self._found is None or (self._found.driver, self._found.version, self._found.programs) != now

    def refresh(self, driver_version: str) -> None:
        """Determine the edits again."""
        driver = self._driver()
        if self._root is None or driver is None:
            return
        programs, hook = toolkit.programs(self._root), self._hook()
        try:
            found, why = toolkit.edits(self._root, driver, hook=hook), ""
        except ToolkitFailed as error:
            found, why = driver_files.edits(driver, hook), str(error)
        self.problem = why and (
            f"NVIDIA's container toolkit cannot say which driver files containers need: {why}. They get those that the agent "
            "finds itself; install the NVIDIA Container Toolkit on the node, or repair it."
        )
        self._found = _Found(driver, driver_version, programs, found)  # atomic: `current` reads it in other threads
        log.info("edits.found", driver=driver_version, mounts=len(found.mounts), problem=self.problem)

    def _own(self, driver: InstalledDriver | None) -> ContainerEdits:
        return ContainerEdits() if driver is None else driver_files.edits(driver, self._hook())

    def _hook(self) -> Path | None:
        try:
            return None if self._root is None else toolkit.hook(self._root, keep_in=self._hook_folder)
        except OSError as error:
            log.warning("edits.no_hook", error=str(error))
            return None

    def _driver(self) -> InstalledDriver | None:
        return None if self._root is None else next(self._root.installed(), None)

    def _there(self, path: str) -> bool:
        """Whether the node has a file. Files that the agent cannot see count as present."""
        if self._root is None or Path(path).is_relative_to(self._hook_folder):
            return Path(path).exists()
        if not Path(path).is_relative_to(self._root.host):
            return True
        seen = self._root.view / Path(path).relative_to(self._root.host)
        return seen.exists() or seen.is_symlink()


class EditsRefresh:
    """Determines the edits again whenever another driver was read, and checks the library that limits memory.

    Runs in its own daemon thread: the toolkit may take seconds, and must not keep the process from ending.
    """

    def __init__(self, edits: CommonEdits, state: NodeState, *, clock: Clock) -> None:
        self._edits = edits
        self._state = state
        self._clock = clock
        self._woken = asyncio.Event()

    def gpus_read(self, _facts: object) -> None:
        """Check whether the driver is another one."""
        self._woken.set()

    async def run(self) -> None:
        """Determine edits until cancelled."""
        executor = DaemonExecutor("edits", monotonic=self._clock.monotonic)
        try:
            while True:
                await self._woken.wait()
                self._woken.clear()
                if (library := await executor.run(self._library)) != self._state.facts.limit_library:
                    self._state.learn(limit_library=library)
                version = self._state.facts.view.driver_version
                # Files vanish while another driver is installed: the next reading of the GPUs retries.
                with suppress(OSError):
                    if version != "" and await executor.run(partial(self._edits.outdated, version)):
                        await executor.run(partial(self._edits.refresh, version))
                        self._state.learn(edits_problem=self._edits.problem)
        finally:
            executor.close()

    def _library(self) -> LimitLibraryState:
        library = self._edits.library
        problem = library.problem()
        return LimitLibraryState(not problem, problem if library.path else "")
