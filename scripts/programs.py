"""Put Kubernetes' programs into the cache before a test waits for them. Takes seconds to minutes the first time, then no time."""

import argparse
import sys

from draco.resources.errors import DracoError
from draco_local.cluster.kindnode import node_image
from draco_local.cluster.kindnode.docker import Docker
from draco_local.cluster.programs import binaries, gocache
from draco_local.cluster.programs.versions import KUBERNETES_VERSIONS
from draco_local.cluster.progress import LineProgress

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm")
REAL_NODE = ("kubelet", "kube-proxy", "containerd", "containerd-shim-runc-v2", "ctr")
KIND = ("helm", "runc-bounded", *node_image.PROGRAMS)


def main() -> None:
    """Build what is missing, with progress."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real-nodes", choices=["yes", "no"], default="no", help="also what runs on a real node")
    parser.add_argument("--kind", choices=["yes", "no"], default="no", help="what clusters of kind need, instead")
    parser.add_argument(
        "--others", choices=["yes", "no"], default="no", help="also the API server of each other version"
    )
    parser.add_argument("--kubernetes", help="the control plane of this version, too")
    asked = parser.parse_args()
    wanted: tuple[str, ...]
    if asked.kind == "yes":
        wanted = ("kubectl", "helm") if Docker().answers() else KIND
    else:
        wanted = CONTROL_PLANE + (REAL_NODE if asked.real_nodes == "yes" else ())
    try:
        with gocache.shared(binaries.cache_folder()):  # what one build downloads and compiles, the next one finds
            binaries.find(*wanted, progress=LineProgress())
            if asked.kubernetes:
                binaries.find(*CONTROL_PLANE, kubernetes=asked.kubernetes, progress=LineProgress())
            for version in KUBERNETES_VERSIONS if asked.others == "yes" else ():
                binaries.find("kube-apiserver", kubernetes=version, progress=LineProgress())
    except DracoError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
