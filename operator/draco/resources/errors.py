"""The base of every error that a person can act on, and the contents of an exception group.

Each package derives its own small hierarchy; the command line prints only the error's sentence.
"""

from collections.abc import Iterator


class DracoError(Exception):
    """An error that a person can fix: `str()` is one clear sentence with the cause and the fix.

    Defects of Draco must not derive from this class, so that they are logged with a traceback.
    """


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors inside nested exception groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
