"""`malleus trace`: files that are refused, what is printed, the import, and two real production traces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from app.cli import main
from app.trace_file import read_meta
from db import audit, episodes, history, plans, runs
from db.errors import InputError
from db.store import Store
from planner.plan import Plan
from planner.spec import ModelProfile
from tests.app.seeded_world import close_world, open_world, page, texts
from tests.planner.synthetic_trace import columns, heavy_data

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
META = "trial_name: X\ndp_size: 3\npp_size: 3\ntp_size: 2\nvpp_size: 1\nworld_size: 18  # devices\n"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    opened = open_world(tmp_path, monkeypatch)
    yield opened
    close_world(opened)


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of the command, for a trace with one slow worker."""
    monkeypatch.setenv("MALLEUS_HOME", str(tmp_path))
    monkeypatch.delenv("MALLEUS_DATABASE_URL", raising=False)
    return write(tmp_path, workers={(1, 0): 2.4})


def write(folder: Path, **changes: Any) -> list[str]:
    table = pd.DataFrame(columns(**changes))
    table["optype"] = table["optype"].astype("category")
    table.to_parquet(folder / "slow job.parquet")
    (folder / "meta.yaml").write_text(META)
    return ["trace", str(folder / "slow job.parquet"), "--meta", str(folder / "meta.yaml")]


def test_it_names_the_worker_and_draws_the_plan(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "cause       device: dp 1, stage 0 computes 2.40x as long as its 2 peers" in out
    assert "(2.4x)" in out
    assert "bound" in out
    assert "24 layers and room for 12 on a device are assumed" in out


def test_json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cause"], found["run"], found["status"]) == ("device", None, "improved")
    assert found["slow"][0]["devices"] == [2, 3]
    assert abs(found["replay_error"]) < 0.01
    assert found["plan_step_s"] < found["original_step_s"]
    assert ModelProfile.from_json(found["profile"]).num_layers == Plan.from_json(found["plan"]).num_layers == 24
    assert main([*arguments, "--json", "--layers-per-stage", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["profile"]["num_layers"] == 12


def test_heavy_data_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*write(tmp_path, data=heavy_data), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cause"], found["slow"]) == ("data", [])


def _table(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Path], None]:
    return lambda path: change(pd.read_parquet(path)).to_parquet(path)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (Path.unlink, "cannot read {path}: no such file"),
        (lambda path: path.write_bytes(b""), "{path} must be a Parquet file, given an empty one"),
        (lambda path: path.write_bytes(b"not a table"), "{path} is not a readable Parquet file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-200]), "{path} is not a readable Parquet file"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:8] + b"\x00" * 4000 + path.read_bytes()[4008:]),
            "{path} is not a readable Parquet file",
        ),
        (_table(lambda table: table.drop(columns=["mb_id"])), "{path}: a trace needs the columns"),
        (_table(lambda table: table.iloc[:0]), "{path}: a trace needs at least one row"),
        (_table(lambda table: table.assign(duration=table.duration.where(table.index != 3))), "given nan in row 3"),
        (_table(lambda table: table.assign(duration=-table.duration)), "duration must not be negative"),
        (_table(lambda table: table.assign(optype=table.optype.where(table.index != 3))), "optype must name"),
        (_table(lambda table: table.assign(start_ts=-table.start_ts)), "times are not monotonic"),
    ],
)
def test_a_trace_that_cannot_be_used_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], expected: str
) -> None:
    path = Path(arguments[1])
    damage(path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert expected.format(path=path) in captured.err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (META.replace("dp_size: 3", "dp_size: 4"), "world_size must be dp_size x pp_size x tp_size = 24, given 18"),
        ("dp_size: 9\npp_size: 1\ntp_size: 2\nworld_size: 18\n", "dp_rank must be 0..8 (dp_size 9 of the meta file)"),
        ("dp_size: 3\n", "pp_size must be a whole number, given nothing"),
        ("dp_size:\n  - 3\n", "line 2: expected key: value, given '- 3'"),
        ("dp_size 3\n", "line 1: expected key: value, given 'dp_size 3'"),
        (META + "dp_size: 3\n", "line 7: dp_size must be there once, given again"),
        (META.replace("tp_size: 2", "tp_size: two"), "tp_size must be a whole number, given 'two'"),
    ],
)
def test_a_meta_file_that_does_not_fit_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str], text: str, expected: str
) -> None:
    Path(arguments[3]).write_text(text)
    assert main(arguments) == 2
    assert expected in capsys.readouterr().err


def test_a_meta_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "meta.yaml"
    path.write_text('---\n# a job\n\ntrial_name: "A B"\ndp_size: 4 # replicas\nnote:\n')
    assert read_meta(path) == {"trial_name": "A B", "dp_size": 4, "note": ""}
    with pytest.raises(InputError, match="cannot read"):
        read_meta(tmp_path / "none.yaml")


def test_without_a_store_nothing_is_imported(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--import"]) == 2
    assert "malleus up" in capsys.readouterr().err


def test_the_import_is_a_finished_run(store: Store, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--import", "--json"]) == 0
    run = json.loads(capsys.readouterr().out)["run"]
    view = runs.get(store, run)
    assert (view.name, view.status, view.active_plan_version, view.step) == ("slow job", "finished", 1, 5)
    assert "cause device: dp 1, stage 0" in view.reason
    assert view.config.num_devices == 18
    assert view.profile is not None
    assert len(history.steps(store, run)) == 6
    rates = {device: rate.rate for device, rate in history.latest_rates(store, run).items()}
    assert rates[2] == rates[3] == pytest.approx(2.4, rel=0.03)
    assert rates[4] == pytest.approx(1.0, rel=0.03)
    found = episodes.all_episodes(store, run)
    assert sorted(episode.device for episode in found) == [2, 3]
    assert {(episode.cause, episode.is_open, episode.end_step) for episode in found} == {("device", False, 5)}
    proposed, first = plans.all_plans(store, run)
    assert (first.status, proposed.status, proposed.trigger) == ("active", "ready", "trace")
    assert first.measured_s == pytest.approx(history.median_step_s(store, run))
    assert proposed.predicted_s is not None
    assert proposed.current_s is not None
    assert proposed.predicted_s < proposed.current_s
    assert proposed.rates == pytest.approx({2: 2.4, 3: 2.4}, rel=0.02)
    assert any(entry.action == "trace.import" for entry in audit.entries(store, run))


def show_runs() -> None:
    from app.dashboard.views import runs

    runs.show()


def show_live() -> None:
    from app.dashboard.views import live

    live.show()


def show_plans() -> None:
    from app.dashboard.views import plans

    plans.show()


def test_every_page_shows_an_imported_run(
    store: Store, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--import"]) == 0
    for show in (show_runs, show_live, show_plans):
        at = page(show, run="1", device="2", version="2")
        assert not at.exception
        assert not at.error
        assert "slow job" in texts(at)
        assert "Traceback" not in texts(at)


@pytest.mark.parametrize("dp", [1, 2])
def test_a_job_without_a_culprit_has_no_episodes(
    store: Store, arguments: list[str], capsys: pytest.CaptureFixture[str], dp: int
) -> None:
    write(Path(arguments[1]).parent, dp=dp, stages={2: 1.7})
    meta = f"dp_size: {dp}\npp_size: 3\ntp_size: 2\nworld_size: {6 * dp}\n"
    Path(arguments[3]).write_text(meta)
    assert main([*arguments, "--import", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cause"] == ("stage" if dp > 1 else "unknown")
    assert episodes.all_episodes(store, 1) == []
    rates = [rate.rate for rate in history.latest_rates(store, 1).values()]
    assert [rate == rate for rate in rates] == [dp > 1] * len(rates)  # without a peer: NaN, not healthy


def _real(name: str) -> list[str]:
    path = TRACES / f"trace-{name}.parquet"
    if not path.is_file():
        pytest.skip(f"the production trace {name} is not beside the repository")
    return ["trace", str(path), "--meta", str(TRACES / f"meta-{name}.yaml"), "--json"]


def test_production_trace_with_a_slow_worker(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_real("AR")) == 0
    found = json.loads(capsys.readouterr().out)
    assert abs(found["replay_error"]) < 0.05
    assert found["cause"] == "device"
    assert [(worker["dp"], worker["stage"]) for worker in found["slow"]] == [(0, 0)]
    assert 2.2 <= found["slow"][0]["rate"] <= 2.6
    assert found["gap"] < 0.06
    assert found["plan_step_s"] < 0.52 * found["measured_step_s"]


def test_production_trace_with_a_heavy_last_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_real("ST")) == 0
    found = json.loads(capsys.readouterr().out)
    assert abs(found["replay_error"]) < 0.05
    assert (found["cause"], found["slow"], found["evidence"]["heaviest_stage"]) == ("stage", [], 3)
    assert found["status"] == "improved"
    assert found["plan_step_s"] < 0.85 * found["original_step_s"]
