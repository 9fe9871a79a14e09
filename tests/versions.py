"""The releases of Kubernetes that tests run on.

`make test` needs only the one that Draco starts by default. What runs on another is marked `other_version`, which
`make test-versions` runs.
"""

import pytest

from draco_local.cluster.programs.versions import DEFAULT_KUBERNETES, KUBERNETES_VERSIONS

OLDEST = KUBERNETES_VERSIONS[-1]
OTHERS = KUBERNETES_VERSIONS[1:]


def on(*versions: str) -> list[object]:
    """Parameters of a fixture that starts each of these releases."""
    return [
        pytest.param(each, marks=() if each == DEFAULT_KUBERNETES else pytest.mark.other_version) for each in versions
    ]
