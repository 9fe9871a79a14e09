import json
from collections.abc import Callable
from contextlib import nullcontext
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from draco_local.cluster.realnode import network
from draco_local.cluster.realnode.network import (
    MAX_NODES,
    AddressPlan,
    NetworkError,
    NetworkNames,
    choose_addresses,
    create_control,
    delete_namespace,
    host_routes,
    names_of,
)

NAMES = NetworkNames(cluster="a-cluster-with-a-long-name-here", mark="0a1b2c")


def test_names_of_links_fit_the_kernels_15_characters() -> None:
    assert all(len(name) <= 15 for name in (NAMES.host_link, NAMES.node_port(1), NAMES.node_port(MAX_NODES)))


def test_clusters_of_one_name_in_two_state_folders_share_no_name(tmp_path: Path) -> None:
    one, other = names_of("a", tmp_path / "one"), names_of("a", tmp_path / "other")
    assert one.host_link != other.host_link
    assert not other.control_namespace.startswith(one.namespace_prefix)


def test_the_names_of_a_cluster_are_the_same_in_every_process(tmp_path: Path) -> None:
    assert names_of("a", tmp_path / "x") == names_of("a", tmp_path / "." / "x")


def test_no_namespace_of_one_cluster_is_taken_for_anothers_whose_name_begins_alike() -> None:
    short = NetworkNames(cluster="gpu", mark="0a1b2c")
    long = NetworkNames(cluster="gpu-0a1b2c", mark="ffffff")
    assert not long.control_namespace.startswith(short.namespace_prefix)


def test_addresses_avoid_what_the_machine_routes_already() -> None:
    taken = [IPv4Network(f"10.99.{x}.0/24") for x in range(256) if x != 7]
    assert choose_addresses(NAMES, taken).nodes == IPv4Network("10.99.7.0/24")


def test_a_machine_that_routes_all_of_10_8_still_gets_a_cluster() -> None:
    plan = choose_addresses(NAMES, [IPv4Network("10.0.0.0/8")])
    assert not plan.nodes.overlaps(IPv4Network("10.0.0.0/8"))


def test_no_free_addresses_is_said_in_a_sentence_that_names_what_was_tried() -> None:
    with pytest.raises(NetworkError, match=r"No /24 is free for the nodes.*10\.99\.0\.0/16.*Remove a route"):
        choose_addresses(NAMES, [IPv4Network("0.0.0.0/0")])


def test_pods_never_get_the_default_range_of_podman_or_the_services_range() -> None:
    for mark in range(0, 1 << 24, 65_521):
        plan = choose_addresses(NetworkNames(cluster="a", mark=f"{mark:06x}"), [])
        for other in ("10.88.0.0/16", "10.96.0.0/16", "10.99.0.0/16"):
            assert not plan.pods.overlaps(IPv4Network(other))


def test_hosts_and_pods_of_all_nodes_have_addresses_of_their_own() -> None:
    plan = AddressPlan(nodes=IPv4Network("10.99.3.0/24"), pods=IPv4Network("10.103.0.0/16"))
    hosts = [plan.host, plan.control, *(plan.node(index) for index in range(1, MAX_NODES + 1))]
    ranges = [plan.pod_cidr(index) for index in range(1, MAX_NODES + 1)]
    assert len(set(hosts)) == len(hosts)
    assert all(host in plan.nodes for host in hosts)
    assert len(set(ranges)) == len(ranges)
    assert all(each.subnet_of(plan.pods) for each in ranges)
    assert str(plan.pod_cidr(2)) == "10.103.2.0/24"


@pytest.fixture
def kernel_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a fake `ip` the only program on PATH; it does nothing, and fails if its arguments contain the given words."""

    def lacks(words: str) -> None:
        program = tmp_path / "ip"
        program.write_text(
            f'#!/bin/sh\ncase "$*" in *"{words}"*) echo "RTNETLINK answers: Operation not supported" >&2; exit 2;; esac\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return lacks


@pytest.mark.parametrize(
    ("lacking", "said"),
    [("netns add", "network namespaces"), ("type bridge", "a bridge"), ("type veth", "a veth pair")],
)
def test_what_the_kernel_lacks_is_said_in_a_sentence(
    kernel_without: Callable[[str], None], lacking: str, said: str
) -> None:
    kernel_without(lacking)
    plan = AddressPlan(nodes=IPv4Network("10.99.3.0/24"), pods=IPv4Network("10.103.0.0/16"))
    with pytest.raises(
        NetworkError, match=rf"^The kernel cannot make {said} .*: RTNETLINK answers: Operation not supported\.$"
    ):
        create_control(NAMES, plan)


@pytest.mark.parametrize("goes", [True, False])
def test_what_goes_by_itself_while_it_is_deleted_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, goes: bool
) -> None:
    entry = tmp_path / "a-namespace"
    entry.touch()
    monkeypatch.setattr(network, "NETNS_FOLDER", tmp_path)
    program = tmp_path / "ip"
    program.write_text(f"#!/bin/sh\n{f'/bin/rm {entry}' if goes else ''}\necho 'Cannot open it' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with nullcontext() if goes else pytest.raises(NetworkError, match=r"`ip netns delete .*` failed: Cannot open it\."):
        delete_namespace(entry.name)


def test_routes_that_lead_anywhere_but_the_default_gateway_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = [
        {"dst": "default", "gateway": "192.0.2.1"},
        {"dst": "192.0.2.0/24", "dev": "eth0"},
        {"dst": "10.99.7.9", "dev": "vpn"},
        {"type": "local", "dst": "127.0.0.1"},
        {"dst": "fe80::/64", "dev": "eth0"},
    ]
    program = tmp_path / "ip"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(routes)}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host_routes() == [IPv4Network("192.0.2.0/24"), IPv4Network("10.99.7.9/32")]
