"""What every law yields."""

from typing import NamedTuple


class Suspicion(NamedTuple):
    """Something that breaks a law if it lasts. The same suspicion keeps the same `key`."""

    law: str
    key: str
    text: str
