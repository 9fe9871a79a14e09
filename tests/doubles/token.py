"""A fixed token as credentials."""


class FixedToken:
    """A bearer token that is never renewed."""

    def __init__(self, token: str) -> None:
        self._header = f"Bearer {token}"

    async def authorization(self) -> str:
        return self._header

    async def renew(self, rejected: str) -> str:
        return rejected
