"""Simulated NVML: MIG mode, profiles and what exists of them."""
# ruff: noqa: N802 - the names are pynvml's

from typing import Any

from draco.simulator.nvml_session import Session, board_of, not_supported


class Mig:
    """MIG functions that read; making and destroying instances is not simulated yet."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def nvmlDeviceGetMigMode(self, device: Any) -> list[int]:
        """Current and pending mode."""
        gpu = self._session.gpu(device)
        if board_of(gpu).mig is None:
            raise not_supported()
        return [gpu.mig_current, gpu.mig_pending]
