"""What a kubelet stand-in must not forget: the pods it started and the claims it had prepared for them.

Owns one small file per node, so that a restarted stand-in goes on where it stopped. Decides nothing.
"""

from datetime import datetime
from pathlib import Path

import msgspec
import structlog

from draco.resources.api.meta import ObjectKey
from draco.resources.names import ClaimUid

log = structlog.get_logger(__name__)


class ClaimRecord(msgspec.Struct, frozen=True):
    """A claim as the plugin calls name it, and the drivers that were asked to prepare it."""

    uid: ClaimUid
    namespace: str
    name: str
    drivers: list[str]


class PodRecord(msgspec.Struct, frozen=True):
    """A pod that holds claims here, or ran here. `started_at` is None until its containers run."""

    uid: str
    namespace: str
    name: str
    claims: list[ClaimRecord]
    started_at: datetime | None = None

    @property
    def key(self) -> ObjectKey:
        """Namespace and name: unique at one time only, which is why records are kept by uid."""
        return ObjectKey(self.namespace, self.name)


class Ledger:
    """Pod records by pod uid, written through to a file at every change.

    The file is replaced atomically and not synced to disk: it has to survive this process, not the machine. One that cannot
    be read is set aside, and the node starts empty.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._pods = {record.uid: record for record in _read(file)}

    def pod(self, uid: str) -> PodRecord | None:
        """Return the record of one pod."""
        return self._pods.get(uid)

    def named(self, key: ObjectKey) -> list[PodRecord]:
        """Return all records under one name: more than one while a pod of that name is torn down and the next one starts."""
        return [record for record in self._pods.values() if record.key == key]

    def names(self) -> set[ObjectKey]:
        """Return the names of all recorded pods."""
        return {record.key for record in self._pods.values()}

    def used_by_others(self, claim: ClaimUid, pod_uid: str) -> bool:
        """Whether a pod other than `pod_uid` holds the claim on this node."""
        return any(
            record.uid != pod_uid and any(held.uid == claim for held in record.claims) for record in self._pods.values()
        )

    def put(self, record: PodRecord) -> None:
        """Remember the pod, replacing what was known of it."""
        if self._pods.get(record.uid) != record:
            self._pods[record.uid] = record
            self._write()

    def drop(self, uid: str) -> None:
        """Forget the pod."""
        if self._pods.pop(uid, None) is not None:
            self._write()

    def _write(self) -> None:
        draft = self._file.with_suffix(".tmp")
        draft.write_bytes(msgspec.json.encode(list(self._pods.values())))
        draft.replace(self._file)


def _read(file: Path) -> list[PodRecord]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[PodRecord])
    except FileNotFoundError:
        return []
    except (msgspec.DecodeError, OSError) as error:
        aside = file.with_suffix(".corrupt")
        file.replace(aside)
        log.warning("kubelet.ledger_set_aside", file=str(aside), error=str(error))
        return []
