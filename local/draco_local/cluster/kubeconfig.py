"""Kubeconfig files of a local cluster: one cluster, one user, everything embedded.

Owns their shape. Anybody who can read such a file has the credential, so they are written for their owner only.
"""

import base64
from pathlib import Path

import yaml

from draco_local.cluster.files import write_atomically
from draco_local.cluster.pki import Credential


def render(*, name: str, server: str, authority: bytes, credential: Credential) -> str:
    """Render the YAML text of a kubeconfig whose only context is called `name`."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": _base64(authority)}}],
        "users": [
            {
                "name": name,
                "user": {
                    "client-certificate-data": _base64(credential.certificate),
                    "client-key-data": _base64(credential.key),
                },
            }
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    return yaml.safe_dump(document, sort_keys=False)


def write(path: Path, *, name: str, server: str, authority: bytes, credential: Credential) -> None:
    """Write a kubeconfig to `path`, readable by its owner only."""
    text = render(name=name, server=server, authority=authority, credential=credential)
    write_atomically(path, text.encode())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
