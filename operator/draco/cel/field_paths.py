"""Field paths: where in the device a part of an expression comes from, as the cost estimate follows it.

Owns one oddity. Kubernetes' estimator extends a path in place where Go has left room for more, so that extending one path twice
changes the first result, too: the key of a two-variable loop over `device.attributes["d"]` counts as large as a value. Estimates
depend on it.
"""


class FieldPath:
    """Names from a variable down to a part of it. Extending gives a new path, which may share its last names with another."""

    __slots__ = ("_length", "_names", "_room")

    def __init__(self, names: list[str], length: int, room: int) -> None:
        self._names = names
        self._length = length
        self._room = room

    @property
    def names(self) -> tuple[str, ...]:
        """What the path says now."""
        return tuple(self._names[: self._length])

    def to(self, name: str) -> "FieldPath":
        """The path to a part of what this one leads to."""
        length = self._length + 1
        if length > self._room:
            return FieldPath([*self._names[: self._length], name], length, max(1, 2 * self._room))
        self._names[self._length : length] = [name]
        return FieldPath(self._names, length, self._room)


def from_variable(name: str) -> FieldPath:
    """The path of a variable itself."""
    return FieldPath([name], 1, 1)


def nowhere() -> FieldPath:
    """The path of what comes from no variable."""
    return FieldPath([], 0, 0)
