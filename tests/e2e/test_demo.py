"""`draco demo`, as `make demo` runs it: every chapter succeeds, and nothing is left."""

import os
import re

import pytest

from tests.e2e.conftest import draco

CHAPTERS = {
    "one GPU with at least 40 GiB": "resourceclaim.resource.k8s.io/one-gpu",
    "looks suspect": "pod/newcomer created",
    "sits badly": "InMaintenance",
    "asks for more GPUs than a node has": "ClaimPending",
    "whole picture": "claim default/newcomer",
    "comes back": "Completed",
    "from the XID": "Xid48",
    "needs part of a GPU": "claim default/small-part",
    "forty more": "default/small-model: 40 of 40 copies fit",
    "from an old article": "compareTo(quantity('40Gi'))",
}
"""Part of each chapter's title, and of its commands' output."""


@pytest.mark.since(36)  # the demo creates a cluster of that version
@pytest.mark.local_provider  # and with that provider
def test_each_chapter_of_the_demo_shows_what_it_promises() -> None:
    name = f"demo-{os.getpid()}"
    try:
        told = draco("demo", "--name", name)
        clusters = draco("cluster", "list").stdout.split()
    finally:
        draco("cluster", "down", "--name", name)  # a failed demo leaves its cluster for inspection
    assert told.returncode == 0, told.stdout + told.stderr
    chapters = re.split(r"^== (.*)$", told.stdout, flags=re.MULTILINE)
    texts = dict(zip(chapters[1::2], chapters[2::2], strict=True))
    for title, shown in CHAPTERS.items():
        (text,) = [text for each, text in texts.items() if title in each]
        assert shown in text, text
    assert name not in clusters
