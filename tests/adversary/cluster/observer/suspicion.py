"""What every law yields."""

from typing import NamedTuple


class Suspicion(NamedTuple):
    """Something that breaks a law, if it lasts. `key` is the same as long as it is the same."""

    law: str
    key: str
    text: str
