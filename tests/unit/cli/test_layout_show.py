"""What `draco layout show` prints about GPUs: bars, words, documents and pictures."""

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from rich.console import Console

from draco.cli import run
from draco.cli.layout import screen as layout_screen
from draco.cli.layout import svg as layout_svg
from draco.mig.board import Board
from draco.mig.known_boards import BOARDS
from draco.overview.layout_schema import GpuView, LayoutView
from draco.overview.layouts import LayoutViewError, ObservedNodes, layout_of
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import GpuMig, GpuNode, InstanceStatus, InstanceUse, MigMode, MigState, WantedGpu
from tests.builders import a_claim, a_gpu_uuid, a_mig_instance, a_mig_node, called_lost

H100 = BOARDS["H100-80GB"]
FIRST = a_gpu_uuid("node-0", 0)
DYNAMIC = WantedGpu(uuid=FIRST, policy="by-demand", mode=MigMode.DYNAMIC)
STATIC = WantedGpu(uuid=FIRST, policy="halves", mode=MigMode.STATIC)


def on(*instances: InstanceStatus, **fields: Any) -> GpuMig:
    return GpuMig(capable=True, enabled=True, instances=list(instances), **fields)


def an_instance(text: str, use: InstanceUse, **fields: Any) -> InstanceStatus:
    profile = H100.profile(text.partition("@")[0])
    return a_mig_instance(text, size=profile.size if profile else 1, use=use, **fields)


def seen(*migs: GpuMig | None, wanted: Iterable[WantedGpu] = (), board: Board = H100, **rest: Any) -> ObservedNodes:
    node = a_mig_node(gpus=migs, board=board, wanted=wanted)
    return ObservedNodes(gpu_nodes={"node-0": node}, **rest)


def gpu_of(observed: ObservedNodes) -> GpuView:
    return layout_of(observed).nodes[0].gpus[0]


def screen(observed: ObservedNodes, *, width: int = 80, colour: bool = False) -> list[str]:
    output = io.StringIO()
    console = Console(
        file=output,
        width=10_000,
        soft_wrap=True,
        highlight=False,
        force_terminal=colour,
        color_system="standard" if colour else None,
    )
    layout_screen.show(layout_of(observed), console, width)
    return output.getvalue().splitlines()


MIXED = on(
    an_instance("1g.10gb@0", InstanceUse.CLAIM, claim="team-a/one"),
    an_instance("1g.10gb@1", InstanceUse.WARM),
    an_instance("3g.40gb@4", InstanceUse.FOREIGN, holder="pid 4711 (dcgm-exporter)"),
)


def test_every_unit_is_drawn_and_every_instance_explained() -> None:
    assert screen(seen(MIXED, wanted=[DYNAMIC])) == [
        "node-0",
        "  gpu-0  [A ][B ] .   .  [C 3g.40gb     ]  Ready  Dynamic by by-demand",
        "         A 1g.10gb at 0  claim team-a/one",
        "         B 1g.10gb at 1  idle, kept warm",
        "         C 3g.40gb at 4  foreign: made by others; in use by pid 4711",
        "             (dcgm-exporter)",
        "         fits 2 x 1g.10gb or 1 x 1g.10gb+me or 1 x 1g.20gb or 1 x 2g.20gb;",
        "           3 x 1g.10gb when idle warm instances are destroyed",
    ]


def test_of_a_lost_agent_it_is_said_that_this_is_from_before() -> None:
    observed = seen(on())
    assert layout_of(observed).notes == []
    observed.gpu_nodes = {"node-0": called_lost(observed.gpu_nodes["node-0"])}
    [note] = layout_of(observed).notes
    assert note.startswith("The agent of node node-0 is lost")
    assert any("is lost" in line for line in screen(observed))


def test_neighbours_of_which_the_same_is_to_be_said_share_a_line() -> None:
    idle = [an_instance(f"1g.10gb@{start}", InstanceUse.LAYOUT) for start in range(3)]
    lines = screen(seen(on(*idle, an_instance("1g.10gb@3", InstanceUse.CLAIM, claim="a/b")), wanted=[STATIC]))
    assert lines[1:4] == [
        "  gpu-0  [A ][B ][C ][D ] .   .   .   .    Ready  Static by halves",
        "         A-C 1g.10gb at 0, 1, 2  idle, of the layout",
        "         D   1g.10gb at 3        claim a/b",
    ]


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_nothing_is_wider_than_a_terminal_of_80_columns(board: Board) -> None:
    smallest = min(board.profiles, key=lambda each: (each.size, each.slices, len(each.name)))
    full = on(
        *(
            a_mig_instance(
                f"{smallest.name}@{start}",
                size=smallest.size,
                use=InstanceUse.CLAIM,
                claim="a-team/a-claim-with-a-name",
            )
            for start in smallest.starts
        )
    )
    for mig in (full, on()):
        lines = screen(seen(mig, wanted=[DYNAMIC], board=board))
        assert max(map(len, lines)) <= 80, "\n".join(lines)


def test_a_policy_with_a_long_name_takes_the_next_line() -> None:
    name = "everything-for-the-inference-team-in-the-second-hall"
    lines = screen(seen(on(), wanted=[WantedGpu(uuid=FIRST, policy=name, mode=MigMode.DYNAMIC)]))
    assert lines[1].endswith("Ready")
    assert lines[2] == f"         Dynamic by {name}"


def test_a_bar_has_all_units_of_its_board() -> None:
    for board in BOARDS.values():
        view = gpu_of(seen(on(), board=board))
        assert view.units == board.units
        assert layout_screen.bar(view).plain.count(".") == board.units


@pytest.mark.parametrize(
    ("mig", "line"),
    [
        (GpuMig(capable=False), "  gpu-0  cannot be divided: no MIG"),
        (GpuMig(capable=True), "  gpu-0  not divided: MIG is off"),
        (None, "  gpu-0  cannot be divided: no MIG"),
    ],
)
def test_a_gpu_that_is_not_divided_takes_one_line(mig: GpuMig | None, line: str) -> None:
    assert screen(seen(mig)) == ["node-0", line]


def test_a_gpu_that_a_policy_has_and_that_cannot_be_read_says_so() -> None:
    assert screen(seen(None, wanted=[DYNAMIC]))[1] == "  gpu-0  the agent does not report the instances of this GPU"


def test_a_gpu_without_mig_in_use_by_a_claim_says_so() -> None:
    claims = [a_claim("big", on=["node-0/gpu-0"]), a_claim("watch", on=["node-0/gpu-0"], admin_access=True)]
    assert screen(seen(GpuMig(capable=True), claims=claims))[1] == (
        "  gpu-0  not divided: MIG is off; in use as a whole by claim default/big"
    )


def test_neighbours_that_are_not_divided_share_a_line() -> None:
    off = GpuMig(capable=True)
    claims = [a_claim("big", on=["node-0/gpu-4"])]
    assert screen(seen(off, off, off, on(), off, off, claims=claims))[1:] == [
        "  gpu-0 to gpu-2  not divided: MIG is off",
        "  gpu-3   .   .   .   .   .   .   .   .    Ready  no policy",
        "         has room for 7 x 1g.10gb or 1 x 1g.10gb+me or 4 x 1g.20gb or",
        "           3 x 2g.20gb or 2 x 3g.40gb or 1 x 4g.40gb or 1 x 7g.80gb; without a",
        "           policy, no instances are made",
        "  gpu-4  not divided: MIG is off; in use as a whole by claim default/big",
        "  gpu-5  not divided: MIG is off",
    ]


def test_of_a_large_fleet_nodes_without_divided_gpus_are_counted() -> None:
    nodes = {f"node-{number}": a_mig_node(f"node-{number}", board=H100) for number in range(layout_screen.MOST_NODES)}
    divided = a_mig_node("divided", gpus=[on()], board=H100)
    assert len(screen(ObservedNodes(gpu_nodes=nodes))) == 3 * layout_screen.MOST_NODES - 1
    lines = screen(ObservedNodes(gpu_nodes={**nodes, "divided": divided}))
    assert lines[0] == "divided"
    assert lines[-2:] == ["", "16 nodes have no divided GPU (32 in all); name a node to see it."]


def test_a_gpu_in_use_whole_in_which_a_claim_was_promised_a_part_says_both() -> None:
    claims = [a_claim("big", on=["node-0/gpu-0"]), a_claim("soon", on=["node-0/gpu-0-mig-1g10gb-19-2"])]
    assert screen(seen(GpuMig(capable=True), claims=claims))[1:] == [
        "  gpu-0   .   .  [A ] .   .   .   .   .    Ready  no policy",
        "         A 1g.10gb at 2  claim default/soon; not made yet",
        "         in use as a whole by claim default/big",
    ]
    picture = layout_svg.picture(layout_of(seen(GpuMig(capable=True), claims=claims)))
    assert picture.count("in use as a whole by claim default/big") == 1


def test_an_undivided_gpu_that_is_divided_on_demand_says_what_fits() -> None:
    lines = screen(seen(GpuMig(capable=True), wanted=[DYNAMIC]))
    assert lines[1] == "  gpu-0  not divided: MIG is off (Dynamic by by-demand)"
    assert lines[2].startswith("         fits 7 x 1g.10gb or")
    assert gpu_of(seen(GpuMig(capable=True), wanted=[DYNAMIC], claims=[a_claim(on=["node-0/gpu-0"])])).fits == []


def test_nothing_fits_where_the_mig_mode_waits_for_something() -> None:
    waits = GpuMig(capable=True, state=MigState.CHANGING, message="Turning MIG mode on needs a reset of this GPU.")
    assert screen(seen(waits, wanted=[DYNAMIC]))[1:] == [
        "  gpu-0  not divided: MIG is off (Dynamic by by-demand)",
        "         Turning MIG mode on needs a reset of this GPU.",
    ]


def test_an_instance_promised_to_a_claim_takes_its_units_before_it_is_made() -> None:
    claim = a_claim("soon", on=["node-0/gpu-0-mig-3g40gb-9-4"])
    view = gpu_of(seen(on(), wanted=[DYNAMIC], claims=[claim]))
    assert [(part.profile, part.start, part.size, part.use) for part in view.parts] == [("3g.40gb", 4, 4, "coming")]
    assert {each.profile: each.count for each in view.fits}["3g.40gb"] == 1
    assert any("claim default/soon; not made yet" in line for line in screen(seen(on(), claims=[claim])))


def test_a_claim_and_its_instance_are_one() -> None:
    made = on(an_instance("3g.40gb@4", InstanceUse.CLAIM, claim="default/soon"))
    view = gpu_of(seen(made, claims=[a_claim("soon", on=["node-0/gpu-0-mig-3g40gb-9-4"])]))
    assert [(part.use, part.claims) for part in view.parts] == [("claim", ["default/soon"])]


def test_of_allowed_profiles_only_is_said_that_they_fit() -> None:
    limited = msgspec.structs.replace(DYNAMIC, profiles=["3g.40gb"])
    assert [(each.profile, each.count, each.starts) for each in gpu_of(seen(on(), wanted=[limited])).fits] == [
        ("3g.40gb", 2, [0, 4])
    ]


def test_under_a_static_layout_nothing_else_is_promised() -> None:
    idle = on(an_instance("3g.40gb@4", InstanceUse.LAYOUT))
    text = " ".join(" ".join(screen(seen(idle, wanted=[STATIC]))).split())
    assert "A 3g.40gb at 4 idle, of the layout" in text
    assert text.endswith("only the instances of its layout are made")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ([], "; without a policy, no instances are made"),
        (
            [WantedGpu(uuid=FIRST, policy="off", mode=MigMode.DISABLED)],
            "; no instances are made, because the policy turns MIG off",
        ),
    ],
)
def test_room_that_no_claim_can_have_is_said_to_be_so(wanted: list[WantedGpu], said: str) -> None:
    text = " ".join(" ".join(screen(seen(on(), wanted=wanted))).split())
    assert "has room for 7 x 1g.10gb or" in text
    assert text.endswith(said)


@pytest.mark.parametrize("state", [MigState.DIRTY, MigState.NEEDS_RESET])
def test_an_unsettled_gpu_says_why_and_that_nothing_is_made(state: MigState) -> None:
    lines = screen(seen(on(state=state, message="GPU instance 7 could not be destroyed."), wanted=[DYNAMIC]))
    assert lines[1].endswith(f"{state}  Dynamic by by-demand")
    assert lines[2:] == [
        "         GPU instance 7 could not be destroyed.",
        "         no instances are made until this is resolved",
    ]
    assert gpu_of(seen(on(state=state), wanted=[DYNAMIC])).fits == []


def test_an_orphan_names_who_keeps_it() -> None:
    orphan = on(an_instance("1g.10gb@3", InstanceUse.ORPHAN, holder="pod exporter"))
    assert "         A 1g.10gb at 3  orphan: is being destroyed; in use by pod exporter" in screen(seen(orphan))


def test_an_instance_of_a_profile_that_the_board_lacks_takes_its_units() -> None:
    strange = on(a_mig_instance("9g.99gb@0", size=4, use=InstanceUse.FOREIGN))
    fits = {each.profile: each.starts for each in gpu_of(seen(strange, wanted=[DYNAMIC])).fits}
    assert fits["3g.40gb"] == [4]
    assert "7g.80gb" not in fits


def test_colour_only_repeats_what_the_words_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    observed = seen(MIXED, on(state=MigState.DIRTY), wanted=[DYNAMIC])
    coloured = "\n".join(screen(observed, colour=True))
    assert "\x1b[30;46m[A ]" in coloured, "a claim's instance is cyan"
    monkeypatch.setenv("NO_COLOR", "1")
    without = "\n".join(screen(observed, colour=True))
    assert "[30;46m" not in without
    assert "[A ]" in without


def test_nodes_and_gpus_come_in_the_order_of_their_numbers() -> None:
    nodes = {name: a_mig_node(name, gpus=11, board=H100) for name in ("node-10", "node-9")}
    view = layout_of(ObservedNodes(gpu_nodes=nodes))
    assert [node.name for node in view.nodes] == ["node-9", "node-10"]
    assert view.nodes[0].gpus[10].device == "gpu-10"


def test_only_the_nodes_asked_for_are_shown_and_unknown_ones_named() -> None:
    nodes = {name: a_mig_node(name, board=H100) for name in ("node-0", "node-1")}
    assert [node.name for node in layout_of(ObservedNodes(gpu_nodes=nodes), ["node-1"]).nodes] == ["node-1"]
    with pytest.raises(LayoutViewError, match="no GpuNode nod-1 in the files; did you mean node-1"):
        layout_of(ObservedNodes(gpu_nodes=nodes), ["nod-1"])


def test_without_any_node_it_says_what_to_look_at() -> None:
    assert screen(ObservedNodes()) == ["No node has reported GPUs. Is Draco's agent running on the GPU nodes?"]


def test_the_picture_is_one_document_equal_for_equal_layouts() -> None:
    view = layout_of(seen(MIXED, GpuMig(capable=True), GpuMig(), wanted=[DYNAMIC]))
    picture = layout_svg.picture(view)
    assert picture == layout_svg.picture(view)
    tree = ET.fromstring(picture)
    titles = [title.text for title in tree.iter("{http://www.w3.org/2000/svg}title")]
    assert "1g.10gb at 0: claim team-a/one" in titles
    assert "3g.40gb at 4: foreign: made by others; in use by pid 4711 (dcgm-exporter)" in titles
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", ""), "it refers to nothing outside"


def test_what_is_cut_in_the_picture_can_be_pointed_at() -> None:
    long = "team-with-a-long-name/claim-with-a-longer-name"
    picture = layout_svg.picture(layout_of(seen(on(an_instance("1g.10gb@0", InstanceUse.CLAIM, claim=long)))))
    assert f"…<title>{long}</title></text>" in picture


def test_names_cannot_become_markup_in_the_picture() -> None:
    evil = on(an_instance("1g.10gb@0", InstanceUse.FOREIGN, holder='pid 1 (</title><script>"&\x1b[31m)'))
    picture = layout_svg.picture(layout_of(seen(evil)))
    ET.fromstring(picture)
    assert "<script>" not in picture
    assert "\x1b" not in picture
    assert "&lt;/title&gt;&lt;script&gt;" in picture


def a_file(folder: Path, *objects: GpuNode | ResourceClaim) -> str:
    documents = [
        {
            "apiVersion": "draco.dev/v1alpha1" if isinstance(each, GpuNode) else "resource.k8s.io/v1",
            "kind": type(each).__name__,
            **msgspec.to_builtins(each),
        }
        for each in objects
    ]
    path = folder / "objects.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}), encoding="utf-8")
    return str(path)


def test_nodes_asked_for_by_name_are_all_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"node-{number}" for number in range(layout_screen.MOST_NODES + 1)]
    path = a_file(tmp_path, *(a_mig_node(name, board=H100) for name in names))
    assert run(["layout", "show", "-f", path]) == 0
    assert capsys.readouterr().out.startswith("17 nodes have no divided GPU (34 in all)")
    assert run(["layout", "show", "-f", path, *names]) == 0
    assert "node-16\n  gpu-0 to gpu-1  not divided: MIG is off\n" in capsys.readouterr().out


def test_files_with_gpu_nodes_stand_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = a_file(tmp_path, a_mig_node(gpus=[MIXED], board=H100), a_claim("soon", on=["node-0/gpu-0-mig-1g10gb-19-2"]))
    assert run(["layout", "show", "-f", file]) == 0
    output = capsys.readouterr().out
    assert "[A ][B ][C ] .  [D 3g.40gb     ]" in output
    assert "\x1b" not in output, "not a terminal"


def test_the_document_has_its_schema_and_all_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["layout", "show", "-o", "json", "-f", a_file(tmp_path, a_mig_node(gpus=[MIXED], board=H100))]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "draco.dev/layout/v1"
    view = msgspec.convert(document, LayoutView)
    assert view.nodes[0].gpus[0].parts[2].holder == "pid 4711 (dcgm-exporter)"
    assert set(document["nodes"][0]["gpus"][0]) >= {"device", "units", "parts", "fits", "fitsWithoutWarm"}


def test_the_picture_comes_on_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["layout", "show", "-o", "svg", "-f", a_file(tmp_path, a_mig_node(gpus=[MIXED], board=H100))]) == 0
    assert capsys.readouterr().out.startswith("<svg ")


def test_a_node_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["layout", "show", "node-9", "-f", a_file(tmp_path, a_mig_node(gpus=[MIXED]))]) == 1
    assert capsys.readouterr().err.startswith("Error: There is no GpuNode node-9 in the files")


def test_a_gpu_node_of_another_version_says_which_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("apiVersion: draco.dev/v1\nkind: GpuNode\nmetadata: {name: a}\n", encoding="utf-8")
    assert run(["layout", "show", "-f", str(path)]) == 1
    assert "write `apiVersion: draco.dev/v1alpha1`" in capsys.readouterr().err


def test_there_has_to_be_something_to_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["layout", "show", "--no-cluster"]) == 2
    assert "give files with -f" in capsys.readouterr().err
