"""Pods on real nodes reach the API server and each other without further setup."""

import sys

import pytest

from tests.e2e import provider
from tests.e2e.kubectl import eventually
from tests.e2e.real_nodes.pods import STARTS_WITHIN_S, Bench, pod

pytestmark = pytest.mark.real_node

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
AUTHORITY = "/etc/kubernetes/pki/ca.crt"
ASK_OVER_TLS = """
import http.client, ssl, sys
tls = ssl.create_default_context(cafile=sys.argv[2])
connection = http.client.HTTPSConnection(sys.argv[1], 443, context=tls, timeout=5)
connection.request("GET", "/healthz")
print(connection.getresponse().status)
"""


def test_a_pod_reaches_the_api_server_by_its_service_address(bench: Bench) -> None:
    bench.apply([pod("one", node=bench.node)])
    bench.wait("one")
    inode = bench.inside("one", "readlink", "/proc/self/ns/net").strip().removeprefix("net:[").removesuffix("]")
    inodes = bench.on_node("sh", "-c", "stat --format '%i %n' /run/netns/*")
    (network,) = [line.split()[1] for line in inodes.splitlines() if line.split()[0] == inode]
    asked: list[str] = [sys.executable, "-c", ASK_OVER_TLS, "10.96.0.1", f"{ACCOUNT}/ca.crt"]
    if provider.ON_KIND:  # kind's nodes have their own files
        asked = [
            "sh",
            "-c",
            f"curl --silent --cacert {AUTHORITY} -o /dev/null -w '%{{http_code}}\\n' https://10.96.0.1/healthz",
        ]
    ask = ["nsenter", f"--net={network}", *asked]
    answer = eventually(lambda: bench.on_node(*ask), within_s=STARTS_WITHIN_S, what="the API server answers")
    assert answer in {"200\n", "401\n"}  # the server proved its identity; anonymous requests may be refused


def test_pods_reach_each_other_across_nodes(bench: Bench) -> None:
    here, there = bench.nodes.nodes
    bench.apply([pod("here", node=here), pod("there", node=there)])
    bench.wait("here", "there")
    address = bench.kube.get("pod", "there")["status"]["podIP"]
    bench.inside("there", "sh", "-c", "nc -l -p 8080 -e echo found > /dev/null 2>&1 &")

    def answer() -> bool:
        return bench.inside("here", "sh", "-c", f"nc -w 2 {address} 8080 < /dev/null") == "found\n"

    eventually(answer, within_s=STARTS_WITHIN_S, what=f"{address} on {there} answers a pod on {here}")
