"""The options of `draco agent`."""

from pathlib import Path

import pytest

from draco import cli


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("--driver=Bad Driver", "'Bad Driver' cannot name a driver: use a DNS subdomain"),
        ("--listen=foo", "'foo' is not HOST:PORT, such as 0.0.0.0:8080."),
    ],
)
def test_a_wrong_option_is_a_usage_error_before_anything_is_made(
    wrong: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    folders = [f"--{name}={tmp_path / name}" for name in ("kubelet-dir", "cdi-dir", "state-dir")]
    assert cli.run(["agent", "--node-name=node-0", *folders, wrong]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "agent.starting" not in said
    assert list(tmp_path.iterdir()) == []
