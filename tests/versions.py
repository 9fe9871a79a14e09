"""The releases of Kubernetes that tests run on.

`make test` needs only the one that Draco starts by default. Tests on another release are marked `other_version`;
`make test-versions` runs them.
"""

import pytest

from draco_local.cluster.programs.versions import DEFAULT_KUBERNETES, KUBERNETES_VERSIONS

OLDEST = KUBERNETES_VERSIONS[-1]
OTHERS = KUBERNETES_VERSIONS[1:]


def on(*versions: str) -> list[object]:
    """Fixture parameters, one for each of these releases."""
    return [
        pytest.param(each, marks=() if each == DEFAULT_KUBERNETES else pytest.mark.other_version) for each in versions
    ]
