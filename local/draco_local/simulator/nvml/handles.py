"""Handles of simulated NVML: pointers, as pynvml's are, whose value says what they mean.

Owns the encoding, and what becomes of pointers that C would follow blindly. Knows nothing of the state that a handle
leads to.
"""

import ctypes
from enum import IntEnum
from typing import Any

import msgspec
import pynvml


class ProcessKilled(BaseException):
    """Here the real library crashes the whole process: it was given something that is not the pointer it follows.

    Not an NVMLError and not even an Exception, so that no handler of NVML's errors can swallow it.
    """


class HandleKind(IntEnum):
    """What a handle leads to. No heap address of a real process begins with these."""

    MIG_DEVICE = 0x5A
    COMPUTE_INSTANCE = 0x5B
    GPU_INSTANCE = 0x5C
    GPU = 0x5D


class Handle(msgspec.Struct, frozen=True):
    """A handle, taken apart. `number` is the GPU's index, or the serial of an instance."""

    kind: HandleKind
    session: int
    number: int


_KIND_AT, _SESSION_AT = 40, 28
_SESSIONS, _NUMBERS = (1 << _KIND_AT - _SESSION_AT) - 1, (1 << _SESSION_AT) - 1
_POINTERS = {
    HandleKind.GPU: pynvml.c_nvmlDevice_t,
    HandleKind.MIG_DEVICE: pynvml.c_nvmlDevice_t,
    HandleKind.GPU_INSTANCE: pynvml.c_nvmlGpuInstance_t,
    HandleKind.COMPUTE_INSTANCE: pynvml.c_nvmlComputeInstance_t,
}


def pointer(kind: HandleKind, session: int, number: int) -> Any:
    """A handle as pynvml's pointer type for it."""
    value = kind << _KIND_AT | (session & _SESSIONS) << _SESSION_AT | (number + 1 & _NUMBERS)
    return ctypes.cast(ctypes.c_void_p(value), _POINTERS[kind])


def handle_of(given: Any) -> Handle | None:
    """What a caller's handle means; None when it is no handle at all."""
    try:
        value = ctypes.cast(given, ctypes.c_void_p).value or 0
    except (ctypes.ArgumentError, TypeError):
        return None
    number = value & _NUMBERS
    try:
        kind = HandleKind(value >> _KIND_AT)
    except ValueError:
        return None
    return Handle(kind, value >> _SESSION_AT & _SESSIONS, number - 1) if number else None


def same_session(handle: Handle, session: int) -> bool:
    """Whether a handle was given out in that session."""
    return handle.session == session & _SESSIONS


def pointed(reference: Any) -> Any:
    """The object behind ctypes' byref() or pointer(), or an array itself, which C takes by its address.

    INVALID_ARGUMENT for None, the null pointer. ProcessKilled for a struct or a number: passed by value, C takes their
    bytes as an address and follows it.
    """
    if reference is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    if hasattr(reference, "_obj"):
        return reference._obj
    if isinstance(reference, ctypes._Pointer):
        if ctypes.cast(reference, ctypes.c_void_p).value is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return reference.contents
    if isinstance(reference, ctypes.Array):
        return reference
    if isinstance(reference, ctypes.Structure | int) or hasattr(reference, "value"):
        name = type(reference).__name__
        raise ProcessKilled(
            f"A {name} was passed by value where NVML expects its address: the real library crashes the process (SIGSEGV); "
            "pass it with ctypes.byref()."
        )
    raise ctypes.ArgumentError(f"Don't know how to convert {type(reference).__name__} for a C function.")
