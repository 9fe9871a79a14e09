"""How long steps appear to a person and in a CI log."""

import io

import pytest

from draco_local.cluster.progress import LineProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_log_gets_a_line_at_both_ends_and_one_now_and_then() -> None:
    stream, time = io.StringIO(), Time()
    with LineProgress(stream, monotonic=time).step("Building etcd") as detail:
        for second in range(1, 66):
            time.now = second
            detail(f"{second} packages compiled")
    assert stream.getvalue().splitlines() == [
        " • Building etcd ...",
        " • Building etcd: 30 packages compiled (30 s)",
        " • Building etcd: 60 packages compiled (60 s)",
        " ✓ Building etcd (65 s)",
    ]


def test_a_terminal_has_its_line_rewritten() -> None:
    stream, time = Terminal(), Time()
    with LineProgress(stream, monotonic=time).step("Building etcd") as detail:
        time.now = 150
        detail("90 packages compiled")
    shown = stream.getvalue().split("\r\x1b[2K")
    assert shown == [
        "",
        " • Building etcd ...",
        " • Building etcd: 90 packages compiled (2 min 30 s)",
        " ✓ Building etcd (2 min 30 s)\n",
    ]


def test_a_line_never_wraps_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream, time = Terminal(), Time()
    with LineProgress(stream, monotonic=time).step("Building kube-apiserver from source") as detail:
        time.now = 5
        detail("90 packages compiled")
        assert all(len(line) < 20 for line in stream.getvalue().split("\r\x1b[2K"))


def test_a_failed_step_is_marked_and_its_error_goes_on() -> None:
    stream = io.StringIO()
    with pytest.raises(ValueError, match="why"), LineProgress(stream, monotonic=Time()).step("Starting"):
        raise ValueError("why")
    assert stream.getvalue().splitlines()[-1] == " ✗ Starting (0.0 s)"


def test_a_stream_that_cannot_write_the_marks_still_gets_the_words() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    with LineProgress(stream, monotonic=Time()).step("Starting"):
        pass
    assert raw.getvalue() == b" ? Starting ...\n ? Starting (0.0 s)\n"
