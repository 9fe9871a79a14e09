"""Makes the simulated `libnvidia-ml.so.<version>` and `nvidia-smi`: C generated from the table of signatures, and compiled.

Also compiles `nvidia-cuda-mps-control`, which needs nothing of either. Owns the C text and the compiler's command line. Needs a C
compiler where they are made, and nothing where they are used: no Python, and of the C library only what is in every release of
the last ten years; the program has it inside.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pynvml

from draco.resources.errors import DracoError
from draco_local.simulator.driver.forms import Parameter, Signature
from draco_local.simulator.driver.signatures import NVIDIA_SMI, SIGNATURES
from draco_local.simulator.nvml.system import ERROR_STRINGS

SOCKET: Final = "/dev/nvidia-simulated"
"""Where the library finds the service: below /dev, so wherever a process sees the node's GPUs. Tests name another."""
SOCKET_VARIABLE: Final = "DRACO_SIMULATED_DRIVER"
SONAME: Final = "libnvidia-ml.so.1"
_CLIENT: Final = Path(__file__).with_name("client.c")
_SMI: Final = Path(__file__).with_name("nvidia_smi.c")
_MPS_CONTROL: Final = Path(__file__).with_name("mps_control.c")


class NotCompiled(DracoError):
    """There is no compiler, or it did not succeed."""


def make(cache: Path) -> Path:
    """Return the simulated NVML, compiled into `cache` unless it is there. NotCompiled without a C compiler."""
    return make_other(SONAME, _client("\n".join(_header())), cache)


def make_nvidia_smi(cache: Path) -> Path:
    """Return the simulated nvidia-smi, compiled into `cache` unless it is there. NotCompiled without a C compiler."""
    source = _client("\n".join([*_table([NVIDIA_SMI]), _SMI.read_text()]))
    return _compiled("nvidia-smi", source, cache, ["-static"])


def make_mps_control(cache: Path, version: str) -> Path:
    """Return the simulated nvidia-cuda-mps-control of a driver, compiled into `cache` unless it is there.

    NotCompiled without a compiler.
    """
    release = version.partition(".")[0]
    kind = ["-static", f"-DRELEASE={release if release.isdecimal() else 0}"]
    return _compiled("nvidia-cuda-mps-control", _MPS_CONTROL.read_text(), cache, kind)


def make_other(soname: str, source: str, cache: Path) -> Path:
    """Return a library of that C source, compiled into `cache` unless it is there."""
    return _compiled(soname, source, cache, ["-shared", "-fPIC", f"-Wl,-soname,{soname}"])


def _client(functions: str) -> str:
    return _CLIENT.read_text().replace('#include "functions.h"', functions)


def _compiled(name: str, source: str, cache: Path, kind: Sequence[str]) -> Path:
    target = cache / f"simulated-{hashlib.sha256(f'{kind} {source}'.encode()).hexdigest()[:16]}" / name
    if target.exists():
        return target
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise NotCompiled(
            "The simulated driver has to be compiled, and there is no C compiler: "
            "run `apt-get install --no-install-recommends gcc libc6-dev`."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        text, made = Path(folder, "source.c"), Path(folder, name)
        text.write_text(source)
        options = [*kind, "-O1", "-Wall", "-Werror", "-s", f'-DSOCKET="{SOCKET}"']
        done = subprocess.run(
            [compiler, *options, str(text), "-lpthread", "-o", str(made)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NotCompiled(
                f"The simulated driver's {name} could not be compiled: {done.stderr.strip()} "
                "If a header or libc.a is missing, run `apt-get install --no-install-recommends gcc libc6-dev`."
            )
        os.replace(made, target)  # noqa: PTH105 - one step: several processes may make it at once
    return target


def _header() -> Iterator[str]:
    yield from _table(SIGNATURES)
    for index, signature in enumerate(SIGNATURES):
        yield _function(index, signature)
    yield from _error_string()


def _table(signatures: Sequence[Signature]) -> Iterator[str]:
    yield "static const struct function table[] = {"
    for signature in signatures:
        parameters = ", ".join(map(_entry, signature.parameters))
        yield f'    {{"{signature.symbol}", {len(signature.parameters)}, {{{parameters}}}}},'
    yield "};"


def _entry(parameter: Parameter) -> str:
    return f"{{{parameter.kind.upper()}, {parameter.size}, {parameter.counted_by}}}"


def _function(index: int, signature: Signature) -> str:
    if signature.unpacked:
        sent = ", ".join(("a0", *signature.unpacked))
        return (
            f"int {signature.symbol}(uint64_t a0, uint64_t a1) {{ uint64_t *s = (uint64_t *)a1; "
            f"if (!s) return {pynvml.NVML_ERROR_INVALID_ARGUMENT}; "
            f"const uint64_t values[] = {{{sent}}}; return call(&table[{index}], values); }}"
        )
    declared = [
        f"{'uint32_t' if each.kind == 'number' else 'uint64_t'} a{number}"
        for number, each in enumerate(signature.parameters)
    ]
    values = ", ".join(f"a{number}" for number in range(len(declared))) or "0"
    return (
        f"int {signature.symbol}({', '.join(declared) or 'void'}) "
        f"{{ const uint64_t values[] = {{{values}}}; return call(&table[{index}], values); }}"
    )


def _error_string() -> Iterator[str]:
    """The function that names return codes; it needs neither a session nor a driver."""
    yield "const char *nvmlErrorString(int code) {"
    yield "    switch (code) {"
    yield '    case 0: return "Success";'
    for code, words in sorted(ERROR_STRINGS.items()):
        yield f'    case {code}: return "{words}";'
    yield "    }"
    yield '    return "Unknown Error";'
    yield "}"
