"""`draco simulate mig`: reads traces, and prints which claims would have been refused."""

import json
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from draco import cli
from draco.cli.simulate import mig as simulate_mig
from draco.cli.simulate import traces as mig_traces
from draco.cli.simulate.command import command

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "mig-capacity.md"


def arrive(t: float, claim: str, profile: str, **more: Any) -> dict[str, Any]:
    return {"t": t, "arrive": claim, "profile": profile, **more}


def depart(t: float, claim: str) -> dict[str, Any]:
    return {"t": t, "depart": claim}


def simulate(trace: Sequence[Any], *options: str, board: str = "H100-80GB", gpus: int = 2) -> Result:
    lines = "".join(each if isinstance(each, str) else json.dumps(each) + "\n" for each in trace)
    where = ["--board", board, "--gpus", str(gpus), "--gpus-per-node", "2", "--trace", "-"]
    return CliRunner().invoke(command, ["mig", *where, *options], input=lines)


def document(trace: Sequence[Any], *options: str, **where: Any) -> dict[str, Any]:
    result = simulate(trace, "-o", "json", *options, **where)
    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def test_claims_are_counted_for_each_policy_on_the_same_trace() -> None:
    trace = [arrive(0, "a", "3g.40gb"), arrive(1, "b", "4g.40gb"), arrive(2, "c", "7g.80gb"), depart(4, "a")]
    told = document(trace, "--policy", "scheduler-1.36", "--policy", "steered", "--policy", "oracle")
    assert told["trace"] == {"events": 4, "claims": 3, "start": 0.0, "end": 4.0}
    assert (told["gpus"], told["slices"]) == (2, 14)
    counted = {each["policy"]: (each["accepted"], each["refused"], each["avoidable"]) for each in told["policies"]}
    assert counted == {"scheduler-1.36": (2, 1, 1), "steered": (3, 0, 0), "oracle": (3, 0, 0)}
    [_, steered, _] = told["policies"]
    assert steered["usedCapacity"] == {
        "mean": round((3 + 7 + 14 * 2) / 4 / 14, 4),
        "peak": 1.0,
        "end": round(11 / 14, 4),
    }
    assert [each for each in steered["profiles"] if each["profile"] == "7g.80gb"] == [
        {"profile": "7g.80gb", "claims": 1, "accepted": 1, "repaired": 0, "refused": 0, "avoidable": 0}
    ]


def test_headroom_is_told_as_it_was_and_as_it_would_be_repacked() -> None:
    trace = [arrive(0, "a", "1g.10gb"), arrive(1, "b", "7g.80gb"), arrive(2, "c", "1g.10gb"), depart(3, "b")]
    [told] = document(trace, "--policy", "scheduler-1.36", gpus=3)["policies"]
    [whole] = [each for each in told["headroom"] if each["profile"] == "7g.80gb"]
    assert whole == {"profile": "7g.80gb", "mean": 1.5, "meanRepacked": 1.5, "end": 2, "endRepacked": 2}


def test_movable_instances_are_moved_for_what_is_blocked() -> None:
    policy = ("--policy", "scheduler-1.36")
    blocked = [arrive(0, "a", "3g.40gb", movable=True), arrive(1, "b", "4g.40gb"), arrive(2, "c", "7g.80gb")]
    [without] = document(blocked, *policy)["policies"]
    [moved] = document(blocked, *policy, "--moves", "2")["policies"]
    assert (without["accepted"], without["moves"]) == (2, 0)
    assert (moved["accepted"], moved["repaired"], moved["moves"]) == (3, 1, 1)


def test_the_policy_is_drawn_again_the_same() -> None:
    trace = [arrive(index, str(index), "1g.10gb") for index in range(9)] + [arrive(9, "big", "7g.80gb")]
    first = document(trace, "--policy", "scheduler-1.35", "--seed", "4", gpus=4)
    assert first == document(trace, "--policy", "scheduler-1.35", "--seed", "4", gpus=4)


def test_text_has_a_line_for_each_policy_and_profile() -> None:
    lines = simulate([arrive(0, "a", "3g.40gb"), depart(1, "a")], "--policy", "operator").stdout.splitlines()
    assert lines[0] == "2 GPUs (H100-80GB) in 1 node: 1 claim in 2 events"
    assert lines[3].split() == ["operator", "1", "(100.0%)", "0", "0", "21.4%", "21.4%"]
    assert [line.split()[0] for line in lines[7:]] == [
        *("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"t": 1', "standard input:2: the line is not a JSON object; an event reads"),
        ("[1]", "standard input:2: the line is not a JSON object; an event reads"),
        ('{"t": 1, "arrive": "b"}', 'standard input:2: claim b arrives without "profile"'),
        (
            '{"t": 1, "arrive": "b", "profil": "1g.10gb"}',
            'standard input:2: an event has no field "profil"; an event reads',
        ),
        (
            '{"t": 1, "arrive": "b", "profile": "1g.5gb"}',
            "standard input:2: there is no profile 1g.5gb on this board (the board has 1g.10gb, 1g.10gb+me, 1g.20gb,",
        ),
        ('{"t": 1}', 'standard input:2: an event has either "arrive" or "depart"'),
        ('{"t": 1, "arrive": "b", "depart": "a"}', 'standard input:2: an event has either "arrive" or "depart"'),
        ('{"t": 1, "depart": "b"}', "standard input:2: claim b departs, but has not arrived"),
        ('{"t": 1, "depart": "a", "profile": "1g.10gb"}', 'standard input:2: only a claim that arrives has "profile"'),
        (
            '{"t": 1, "arrive": "a", "profile": "1g.10gb"}',
            "standard input:2: claim a arrives again before it departed",
        ),
        ('{"t": -1, "depart": "a"}', "standard input:2: time goes back from 0 to -1: sort the trace by t"),
        ('{"t": 1e999, "depart": "a"}', 'standard input:2: "t" must be a number; an event reads'),
        ('{"t": "1", "depart": "a"}', 'standard input:2: "t" must be a number; an event reads'),
        ('{"t": 1, "depart": ["a"]}', 'standard input:2: "depart" must be a string; an event reads'),
        ('{"t": 1, "arrive": "b", "movable": 1}', 'standard input:2: "movable" must be true or false; an event reads'),
        ('{"depart": "a"}', 'standard input:2: "t" is missing; an event reads'),
        ("\xff", "standard input:2:"),
        (" " * mig_traces.LONGEST_LINE + "{}", "standard input:2: the line is longer than 65536 bytes"),
    ],
)
def test_a_line_that_makes_no_sense_is_told_with_its_number(line: str, sentence: str) -> None:
    result = simulate([arrive(0, "a", "1g.10gb"), f"{line}\n"])
    assert isinstance(result.exception, mig_traces.TraceError)
    assert str(result.exception).startswith(sentence)
    assert "\n" not in str(result.exception)


def test_a_trace_without_events_is_no_trace() -> None:
    assert str(simulate(["\n", "\n"]).exception) == "standard input holds no events"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--board", "H100", "--gpus", "2"], "There is no board H100: there are A100-40GB, A100-80GB, H100-80GB, "),
        (["--board", "H100", "--gpus", "2"], "Did you mean H100-80GB?"),
        (["--board", "h200", "--gpus", "2"], "Did you mean H200-141GB?"),
        (["--board", "A100", "--gpus", "2"], "Did you mean A100-40GB or A100-80GB?"),
        (["--gpus", "2"], "--board is missing: A100-40GB"),
        (["--board", "A30", "--gpus", "0"], "0 is not in the range 1<=x<=100000"),
        (["--board", "A30", "--gpus", "2", "--context", "x"], "--kubeconfig and --context belong to --from-node: give"),
        (["--board", "A30", "--gpus", "2", "--policy", "best"], "'best' is not one of"),
    ],
)
def test_a_wrong_option_is_told(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["simulate", "mig", *arguments, "--trace", "-"]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_options_of_the_other_command_are_refused_before_this_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["simulate", "--copies", "3", "mig", "--board", "A30", "--gpus", "2", "--trace", "-"]) == 2
    assert "--copies is before mig, which has its own options: write options after mig." in capsys.readouterr().err


class ApiServer(BaseHTTPRequestHandler):
    """Serves GpuNodes: one with a board, one with two, one with none."""

    def do_GET(self) -> None:
        nodes = {"one": ["SMALL"], "two": ["SMALL", "OTHER"], "none": []}
        name = self.path.rpartition("/")[2].partition("?")[0]
        row = {"id": 0, "name": "2g.9gb", "slices": 2, "size": 2, "starts": [0], "maxInstances": 1}
        boards = [{"name": each, "profiles": [row]} for each in nodes.get(name, [])]
        found = {"metadata": {"name": name}, "spec": {}, "status": {"boards": boards}}
        missing = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "not found"}
        self.send_response(200 if name in nodes else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(found if name in nodes else missing).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), ApiServer)
    thread = Thread(target=server.serve_forever)
    thread.start()
    file = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {}}]
    file.write_text(json.dumps({"current-context": "c", "clusters": [cluster], "contexts": [context], "users": users}))
    yield str(file)
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("options", [["--from-node", "one"], ["--from-node", "two", "--board", "OTHER"]])
def test_the_board_a_node_has_reported_is_used(kubeconfig: str, options: list[str]) -> None:
    where = ["--kubeconfig", kubeconfig, *options, "--gpus", "3", "--trace", "-", "-o", "json"]
    result = CliRunner().invoke(command, ["mig", *where], input=json.dumps(arrive(0, "a", "2g.9gb")))
    told = json.loads(result.stdout)
    assert (told["fromNode"], told["slices"], told["policies"][0]["accepted"]) == (options[1], 6, 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--from-node", "two"], "Node two has the boards SMALL, OTHER: choose one with --board."),
        (["--from-node", "two", "--board", "B"], "Node two has no board B: it has SMALL, OTHER."),
        (["--from-node", "none"], "Node none has reported no board that supports MIG."),
        (
            ["--from-node", "gone"],
            "The cluster has no GpuNode gone: `kubectl get gpunodes` lists those whose agent has reported.",
        ),
    ],
)
def test_a_node_that_gives_no_board_is_told(
    kubeconfig: str, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["simulate", "mig", "--kubeconfig", kubeconfig, *options, "--gpus", "3", "--trace", "-"]) > 0
    assert said in capsys.readouterr().err


def test_a_long_trace_keeps_only_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of headroom are thinned out evenly as the trace goes on."""
    monkeypatch.setattr(simulate_mig, "FEWEST_SAMPLES", 4)
    runs: list[Any] = []
    real = simulate_mig._policy_report

    def told(run: Any) -> dict[str, Any]:
        runs.append(run)
        return real(run)

    monkeypatch.setattr(simulate_mig, "_policy_report", told)
    trace = [event for index in range(200) for event in (arrive(index, "a", "7g.80gb"), depart(index, "a"))]
    document(trace)
    assert 4 <= len(runs[0].headroom) < 8


def test_the_how_to_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (tmp_path / "day.jsonl").write_text(text.split("```json\n")[1].split("```")[0])
    monkeypatch.chdir(tmp_path)
    [shown] = [
        block.split("```")[0] for block in text.split("```console\n$ draco simulate ")[1:] if "day.jsonl" in block
    ]
    options, _, output = shown.partition("\n")
    assert CliRunner().invoke(command, options.split()).stdout == output
