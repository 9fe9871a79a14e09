"""Downloads released programs: only those that a site offers within seconds and whose checksum SHA256SUMS has.

Owns the addresses, the network and its time limits, and the checksums, which come with Draco and never from the site that serves
a file. A program that is not published for this machine, or has no checksum, is not offered. A site that cannot be reached is
reported in a sentence, and the caller builds instead; a file with a wrong checksum is an error. All sites are asked concurrently.
"""

import asyncio
import functools
import hashlib
import shutil
import tarfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import aiohttp

from draco_local.cluster.errors import BinariesMissing, ClusterError

_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
SUMS: Final = Path(__file__).with_name("SHA256SUMS")
"""Lines as `sha256sum` writes them, of files by their site and path."""


class ReleasedFile(NamedTuple):
    """One published file of a module. `programs` maps the wanted ones to their paths in the archive; "" is the file itself."""

    module: str
    site: str
    path: str
    programs: Mapping[str, str]

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.rpartition("/")[2]

    @property
    def origin(self) -> str:
        """Its site and path, as SHA256SUMS names it."""
        return f"{self.site}{self.path}"


def releases(module: str, programs: Sequence[str], *, machine: str) -> list[ReleasedFile]:
    """Return the published files that hold `programs` of `module` ("etcd-3.6.8") for a machine as `uname -m` names it."""
    architecture = _ARCHITECTURES.get(machine.lower())
    if architecture is None:
        return []
    name, _, version = module.rpartition("-")
    match name:
        case "kubernetes" | "kubeadm":
            folder = f"/release/v{version}/bin/linux/{architecture}"
            return [ReleasedFile(module, "dl.k8s.io", f"{folder}/{program}", {program: ""}) for program in programs]
        case "etcd":
            folder = f"/etcd-io/etcd/releases/download/v{version}"
            archive = f"etcd-v{version}-linux-{architecture}"
            inside = {program: f"{archive}/{program}" for program in programs}
            return [ReleasedFile(module, "github.com", f"{folder}/{archive}.tar.gz", inside)]
        case "containerd":
            # The static one: the other needs a C library as new as that of the machine it was built on.
            file = f"/containerd/containerd/releases/download/v{version}/containerd-static-{version}-linux-{architecture}.tar.gz"
            return [ReleasedFile(module, "github.com", file, {program: f"bin/{program}" for program in programs})]
        case "helm":
            file = f"/helm-v{version}-linux-{architecture}.tar.gz"
            inside = {program: f"linux-{architecture}/{program}" for program in programs}
            return [ReleasedFile(module, "get.helm.sh", file, inside)]
        case _:
            return []


def url(release: ReleasedFile, *, mirror: str = "") -> str:
    """Return where a release is: on its site, or below a mirror's folder of that site, as `wget -x` makes it."""
    return f"{mirror.rstrip('/')}/{release.origin}" if mirror else f"https://{release.origin}"


@functools.cache
def sums(file: Path) -> Mapping[str, str]:
    """Read the SHA-256 of each file that may be downloaded, by its origin."""
    lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {origin: sha256 for sha256, origin in lines}


NONE = "none"
"""Instead of a mirror: download nothing."""

_CONNECT_WITHIN_S = 2.5
_ANSWER_WITHIN_S = 5.0
_STALLED_AFTER_S = 10.0
_CHUNK = 1 << 18

T = TypeVar("T")


class WrongChecksum(ClusterError):
    """A downloaded file does not match its checksum in SHA256SUMS."""


class DownloadFailed(Exception):
    """A file cannot be downloaded now; the message says why, in a few words that name the site."""


class ChecksummedFile(NamedTuple):
    """A released file that its site has, and whose checksum is known."""

    release: ReleasedFile
    url: str
    sha256: str


def check_mirror(mirror: str) -> None:
    """Raise ClusterError unless this is the address of a mirror, NONE, or "" for the publishers' own sites."""
    if mirror and mirror != NONE and not mirror.startswith(("http://", "https://")):
        raise ClusterError(
            f'"{mirror}" is not a mirror: name an http:// or https:// address, or {NONE} to fetch nothing.'
        )


def offers(releases: Sequence[ReleasedFile], *, mirror: str = "") -> tuple[list[ChecksummedFile], list[str]]:
    """Find those of `releases` that can be downloaded now, and why the others cannot; takes seconds, even if sites are silent."""
    known = sums(SUMS)
    vouched = [
        ChecksummedFile(each, url(each, mirror=mirror), known[each.origin]) for each in releases if each.origin in known
    ]
    unknown = [each.module.replace("-", " ") for each in releases if each.origin not in known]
    found, reasons = _run(_there(vouched, mirror=mirror))
    return found, [*(f"Draco knows no checksum of {name}'s release" for name in dict.fromkeys(unknown)), *reasons]


def fetch(offered: Sequence[ChecksummedFile], folder: Path, detail: Callable[[str], None]) -> dict[str, Path]:
    """Download the programs of `offered` into `folder`, and return their paths by name.

    Raises DownloadFailed, WrongChecksum, or BinariesMissing if they cannot be stored.
    """
    try:
        _run(_fetch(offered, folder, detail))
        for offer in offered:
            _unpack(folder / offer.release.name, offer.release.programs, folder)
    except OSError as error:
        raise BinariesMissing(
            f"The downloaded programs cannot be stored in {folder.parent} ({error.strerror or error}): free 1 GB there, or "
            f"name a folder that holds the programs with --bin-dir."
        ) from error
    return {program: folder / program for offer in offered for program in offer.release.programs}


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, but without its wait at the end for a DNS server that does not answer."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


async def _there(offered: Sequence[ChecksummedFile], *, mirror: str) -> tuple[list[ChecksummedFile], list[str]]:
    timeout = aiohttp.ClientTimeout(total=_ANSWER_WITHIN_S, sock_connect=_CONNECT_WITHIN_S)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
        answers = await asyncio.gather(*(_missing(session, offer, mirror=mirror) for offer in offered))
    found = [offer for offer, reason in zip(offered, answers, strict=True) if not reason]
    return found, list(dict.fromkeys(filter(None, answers)))


async def _missing(session: aiohttp.ClientSession, offer: ChecksummedFile, *, mirror: str) -> str:
    """Why a file cannot be downloaded now; "" as soon as its site begins to send it."""
    try:
        async with session.get(offer.url) as response:
            _check(response, offer.url)
    except DownloadFailed as error:
        return str(error)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return _why(error, mirror or offer.release.site)
    return ""


async def _fetch(offered: Sequence[ChecksummedFile], folder: Path, detail: Callable[[str], None]) -> None:
    expected: dict[str, int] = {}
    arrived: dict[str, int] = {}

    def report(name: str, size: int | None, bytes_: int) -> None:
        arrived[name] = bytes_
        if size:
            expected[name] = size
        of = f" of {sum(expected.values()) >> 20}" if len(expected) == len(offered) else ""
        detail(f"{sum(arrived.values()) >> 20}{of} MB")

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_WITHIN_S, sock_read=_STALLED_AFTER_S)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
        try:
            async with asyncio.TaskGroup() as tasks:
                for offer in offered:
                    tasks.create_task(_fetch_one(session, offer, folder / offer.release.name, report))
        except ExceptionGroup as failed:  # not `except*`: some versions of Python put what it raises into a group again
            _, unexpected = failed.split((DownloadFailed, WrongChecksum, OSError))
            if unexpected:
                raise
            raise (failed.subgroup(WrongChecksum) or failed).exceptions[0] from None


async def _fetch_one(
    session: aiohttp.ClientSession, offer: ChecksummedFile, path: Path, report: Callable[[str, int | None, int], None]
) -> None:
    hashed = hashlib.sha256()
    arrived = 0
    with path.open("wb") as file:
        try:
            async with session.get(offer.url) as response:
                _check(response, offer.url)
                async for chunk in response.content.iter_chunked(_CHUNK):
                    file.write(chunk)
                    hashed.update(chunk)
                    arrived += len(chunk)
                    report(path.name, response.content_length, arrived)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise DownloadFailed(_why(error, offer.url)) from error
    if hashed.hexdigest() != offer.sha256:
        raise WrongChecksum(
            f"{offer.url} does not match the checksum that Draco has of it (its SHA-256 is {hashed.hexdigest()}, not "
            f"{offer.sha256}), so it was deleted: try again, name another --mirror, or build with --mirror {NONE}."
        )


def _check(response: aiohttp.ClientResponse, address: str) -> None:
    if response.status != 200:
        raise DownloadFailed(f"{address} answers {response.status} {response.reason}")
    if address.startswith("https:") and any(each.url.scheme != "https" for each in (*response.history, response)):
        raise DownloadFailed(f"{address} redirects to an address without https")


def _unpack(file: Path, programs: Mapping[str, str], folder: Path) -> None:
    """Unpack the programs in a downloaded file."""
    inside = {member: program for program, member in programs.items() if member}
    if inside:
        try:
            with tarfile.open(file, "r:gz") as archive:
                for member in archive:
                    if member.name in inside and (content := archive.extractfile(member)):
                        with (folder / inside.pop(member.name)).open("wb") as unpacked:
                            shutil.copyfileobj(content, unpacked)
        except (tarfile.TarError, EOFError) as error:
            raise DownloadFailed(f"{file.name} cannot be unpacked ({error})") from error
        if inside:
            raise DownloadFailed(f"{file.name} holds no {' and no '.join(inside)}")
        file.unlink()
    for program in programs:
        (folder / program).chmod(0o755)


def _why(error: Exception, where: str) -> str:
    match error:
        case TimeoutError():  # aiohttp's are that too
            return f"{where} does not answer in time"
        case aiohttp.ClientConnectorDNSError():
            return f"there is no address for {where}"
        case aiohttp.ClientSSLError():
            return f"{where} has no certificate that this machine trusts"
        case aiohttp.ClientConnectorError():
            return f"{where} cannot be reached ({error.strerror or error.os_error})"
        case _:
            return f"{where} does not answer as expected ({str(error) or type(error).__name__})"
