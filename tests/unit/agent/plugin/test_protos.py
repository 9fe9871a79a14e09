from pathlib import Path

import pytest
from google.protobuf.descriptor import ServiceDescriptor

from draco.agent.plugin import wire
from scripts import generate_protos

COMMITTED = generate_protos.ROOT / "operator" / generate_protos.PACKAGE_FOLDER


def test_the_committed_message_classes_are_what_the_protos_generate(tmp_path: Path) -> None:
    generated = generate_protos.generate(tmp_path)
    assert {path.name for path in generated} == {path.name for path in COMMITTED.glob("*_pb2.py*")}
    for path in generated:
        assert path.read_text() == (COMMITTED / path.name).read_text(), f"{path.name} is stale: run `make generate`"


@pytest.mark.parametrize(
    ("service", "name"),
    [
        (wire.REGISTRATION, "pluginregistration.Registration"),
        (wire.DRA_V1, "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"),
        (wire.HEALTH_V1, "v1.DRAResourceHealth"),
    ],
)
def test_services_have_the_names_kubelet_calls(service: ServiceDescriptor, name: str) -> None:
    assert service.full_name == name
