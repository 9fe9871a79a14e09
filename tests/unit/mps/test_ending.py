"""What a person may end: a daemon of the node by its name, also one that hangs under its clients."""

import os
import signal
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner

from draco.agent.mps.folder import WantedDaemon, daemon_name
from draco.cli import root
from draco.mps.ending import NoSuchDaemon
from tests.doubles.mps import MpsClient, MpsNode

GPU = f"GPU-{uuid.uuid4()}"  # other tests have daemons, too
NAME = daemon_name([GPU])


def said(node: MpsNode, *arguments: str) -> str:
    command = ["mps", "--mps-folder", str(node.folder.root), "end", *arguments]
    return CliRunner().invoke(root, command, catch_exceptions=False).output.strip()


def test_a_hanging_daemon_with_a_client_is_ended_and_the_keeper_starts_it_again(tmp_path: Path) -> None:
    with MpsNode(tmp_path) as node:
        node.folder.want(NAME, WantedDaemon(claim="default/one", devices=[GPU]))
        node.keeper.keep(NAME)
        client = MpsClient(node.folder.pipe(NAME))
        before = node.processes.of(NAME)
        for each in before:
            os.kill(each.pid, signal.SIGSTOP)
        assert said(node) == f"{NAME}: for claim default/one on {GPU}, 2 processes"
        assert said(node, NAME) == "Killed 2 processes."
        client.end()
        assert not node.processes.of(NAME)
        assert said(node, NAME) == "It does not run."
        node.keeper.keep(NAME)
        assert node.processes.of(NAME)


def test_a_name_that_the_node_does_not_have_is_answered_with_those_that_it_has(tmp_path: Path) -> None:
    with MpsNode(tmp_path) as node:
        assert said(node) == "This node has no MPS daemon."
        node.folder.want(NAME, WantedDaemon(claim="default/one", devices=[GPU]))
        with pytest.raises(NoSuchDaemon, match=rf"This node has no MPS daemon other\. It has {NAME}\."):
            said(node, "other")


def test_a_message_says_how_to_end_a_daemon_under_its_clients(tmp_path: Path) -> None:
    with MpsNode(tmp_path) as node:
        node.folder.want(NAME, WantedDaemon(claim="default/one", devices=[GPU]))
        node.keeper.keep(NAME)
        client = MpsClient(node.folder.pipe(NAME))
        node.version = "590.44.01"
        node.keeper.keep(NAME)
        assert f"`draco mps end {NAME}` in the keeper's pod ends it with its clients" in node.folder.state(NAME).problem
        client.end()
