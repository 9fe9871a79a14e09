"""The agent machine's steps of claims that share GPUs.

Owns these steps. `claims` has what must be true of an answer, `sharing` what must be true of what is published.
"""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.adversary.agent.claims import LifeOfClaims
from tests.adversary.agent.configurations import CONFIGURED, HALF, MPS, Said
from tests.adversary.agent.node import NUMBERS, fired

MEMORY = st.sampled_from((None, "1", "10Gi", "40Gi", "80Gi"))


class ClaimsOfShares(LifeOfClaims):
    """Claims with shares of one node's GPUs."""

    @precondition(lambda self: len(self.claims) < 8 and bool(self._shareable()))
    @rule(
        picks=st.lists(NUMBERS, min_size=1, max_size=3),
        memory=MEMORY,
        age=st.sampled_from((0, 0, 0, 1)),
        tolerant=st.sampled_from((False, False, False, True)),
        asked=st.sampled_from((True, True, True, False)),
        said=st.just(()) | CONFIGURED,
    )
    def share(
        self,
        picks: list[int],
        memory: str | None,
        age: int = 0,
        tolerant: bool = False,
        asked: bool = True,
        said: Said = (),
    ) -> None:
        """The scheduler allocates a claim of shares, perhaps several of one GPU."""
        published = self.past[max(0, len(self.past) - 1 - age)]
        claim = self._new(said)
        wanted = {"memory": memory} if memory is not None else {}
        for pick in picks:
            names = self._shareable()
            if names:
                self._give(claim, published, names[pick % len(names)], tolerant=tolerant, wanted=wanted)
        if claim.results:
            fired["allocate several shares"] += len(claim.results) > 1
            self._add(claim, "allocate shares", asked=asked)

    @precondition(lambda self: self._served() and len(self.claims) < 6 and bool(self._shareable()))
    @rule(
        several=st.lists(st.tuples(NUMBERS, MEMORY), min_size=2, max_size=4),
        interval=st.sampled_from(("", "", "", "Long", "Short", MPS, HALF)),
        runs=st.booleans(),
    )
    def pods_that_share(self, several: list[tuple[int, str | None]], interval: str, runs: bool) -> None:
        """Several typical pods with a share each; perhaps their programs run."""
        for pick, memory in several:
            if self._served():
                self.share([pick], memory, said=(("FromClaim", interval),) if interval else ())
                if runs and self.claims:
                    self.run_pod(pick, listed=True, ends=False)

    @precondition(lambda self: self._served() and len(self.claims) < 8 and bool(self._shareable()))
    @rule(pick=NUMBERS, memory=MEMORY, runs=st.booleans(), ends=st.booleans())
    def pod_that_shares(self, pick: int, memory: str | None, runs: bool = False, ends: bool = False) -> None:
        """A typical pod with a share; it may end soon."""
        self.share([pick], memory)
        if runs and self.claims:
            self.run_pod(len(self.claims) - 1, listed=True, ends=False)
        if ends and self._served() and self.claims:
            self._pods_end()
            self.unprepare(len(self.claims) - 1)

    @precondition(lambda self: self._served() and self.mps.installed and bool(self.past) and len(self.claims) < 8)
    @rule(pick=st.integers(0, 40), asked=st.sampled_from((MPS, HALF)), runs=st.booleans(), ends=st.booleans())
    def pod_with_mps(self, pick: int, asked: str, runs: bool = False, ends: bool = False) -> None:
        """A typical pod whose programs share a GPU through MPS; it may end soon."""
        self.pod("whole", pick, said=(("FromClaim", asked),))
        if runs and self.claims:
            self.run_pod(len(self.claims) - 1, listed=True, ends=False)
        if ends and self._served() and self.claims:
            self._pods_end()
            self.unprepare(len(self.claims) - 1)

    def _shareable(self) -> list[str]:
        """The devices that several claims may have."""
        last = self.past[-1].devices if self.past else ()
        return [str(each["name"]) for each in last if each.get("allowMultipleAllocations")]
