"""The command line says what is there, what is wrong, and with which exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bits import assert_same_state

import s4weights
from s4core.cli import main

HEADER = ("name", "step", "kind", "depth", "raw", "stored", "ratio", "created")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    w = torch.randn(100, 80)
    for step in (1, 2, 3):
        w = w + 1e-6 * torch.randn(100, 80)
        state = {"model": {"w": w, "tied": w}, "n": torch.tensor(step)}
        s4weights.save_checkpoint(state, tmp_path / "run", step=step)
    return tmp_path / "run"


def call(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_ls_lists_every_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("ls", run) == 0
    lines = capsys.readouterr().out.splitlines()
    assert tuple(lines[0].split()) == HEADER
    assert [line.split()[:4] for line in lines[1:]] == [
        ["step-00000001.ckpt", "1", "base", "0"],
        ["step-00000002.ckpt", "2", "delta", "1"],
        ["step-00000003.ckpt", "3", "delta", "2"],
    ]


def test_ls_json_is_for_scripts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("ls", run, "--json") == 0
    found = json.loads(capsys.readouterr().out)["checkpoints"]
    assert [line["step"] for line in found] == [1, 2, 3]
    assert found[1]["stored_bytes"] < found[0]["stored_bytes"] < found[0]["raw_bytes"]


def test_ls_of_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("ls", tmp_path) == 0
    assert "no checkpoints" in capsys.readouterr().out


def test_ls_shows_a_broken_checkpoint_and_fails(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = sorted((run / ".s4" / "checkpoints").iterdir())[0]
    manifest.write_bytes(manifest.read_bytes().replace(b'"step":', b'"stop":'))
    assert call("ls", run) == 1
    assert "broken: " in capsys.readouterr().out


def test_ls_and_show_import_no_torch(run: Path) -> None:
    code = (
        "import sys; from s4core.cli import main; "
        f"assert main(['ls', {str(run)!r}]) == 0; "
        f"assert main(['show', {str(run / 'step-00000002.ckpt')!r}]) == 0; "
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_show_tells_what_a_checkpoint_holds(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", run / "step-00000002.ckpt", "--tensors") == 0
    out = capsys.readouterr().out
    for part in ("delta of depth 1 on ", "3 in 2 arrays", "model/tied", "[100, 80]", "inline"):
        assert part in out
    assert call("show", run / "step-00000002.ckpt", "--tensors", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    found = [(tensor["path"], tensor["also"]) for tensor in document["tensors"]]
    assert found == [("model/w", ["model/tied"]), ("n", [])]


def test_show_reads_self_contained_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s4weights.save([torch.zeros(5000)], tmp_path / "x.s4")
    assert call("show", tmp_path / "x.s4") == 0
    assert "(self-contained file)" in capsys.readouterr().out


@pytest.mark.parametrize("full", [[], ["--full"]])
def test_verify_passes_what_is_whole_and_names_what_is_not(
    run: Path, full: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("verify", run, *full) == 0
    assert "3 checkpoints, 0 damaged" in capsys.readouterr().out
    last = json.loads((run / "step-00000003.ckpt").read_text())["checkpoint"]
    (shard,) = (run / ".s4" / "shards" / last).iterdir()
    data = bytearray(shard.read_bytes())
    data[40] ^= 4
    shard.write_bytes(data)
    assert call("verify", run, *full) == 1
    out = capsys.readouterr().out
    assert "step-00000002.ckpt: ok" in out
    assert "step-00000003.ckpt: DAMAGED: " in out
    assert call("verify", run / "step-00000003.ckpt", *full, "--json") == 1
    assert json.loads(capsys.readouterr().out)["checkpoints"][0]["ok"] is False


def test_verify_of_nothing_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify", tmp_path) == 1
    assert "no checkpoint there" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["s4", "pt", "safetensors"])
def test_export_writes_a_file_that_stands_alone(run: Path, ending: str) -> None:
    state = s4weights.load_checkpoint(run)
    target = run.parent / f"out.{ending}"
    assert call("export", run / "step-00000003.ckpt", target) == 0
    found = s4weights.load(target)
    if ending == "safetensors":
        state = {"model/w": state["model"]["w"], "model/tied": state["model"]["w"], "n": state["n"]}
    if ending == "safetensors":
        found = {path: found[path] for path in state}
    assert_same_state(state, found)


def test_export_to_an_unknown_ending_names_the_known_ones(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("export", run / "step-00000003.ckpt", run / "x.zip") == 1
    assert "expected a name that ends in .s4, .pt or .safetensors" in capsys.readouterr().err


def test_rm_removes_only_what_it_is_told_and_all_or_nothing(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = s4weights.load_checkpoint(run)
    assert call("rm", run, "step-00000001.ckpt", "nothing") == 1
    assert "has no checkpoint called nothing; nothing was removed" in capsys.readouterr().err
    assert call("rm", run, "step-00000001.ckpt", "step-00000002.ckpt") == 0
    assert s4weights.open(run).steps() == [3]
    assert_same_state(state, s4weights.load_checkpoint(run))


def test_gc_explains_every_decision(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("step-00000003.ckpt", "step-00000002.ckpt"):
        (run / name).unlink()
    assert call("gc", run, "--dry-run", "--grace-hours", 0) == 0
    out = capsys.readouterr().out
    assert out.count("no ref's chain needs it") == 2
    assert "2 checkpoints, " in out
    assert "would be deleted" in out
    assert len(list((run / ".s4" / "checkpoints").iterdir())) == 3
    assert call("gc", run, "--grace-hours", 0, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["swept"]) == 2
    assert len(list((run / ".s4" / "checkpoints").iterdir())) == 1


def test_errors_are_sentences_not_tracebacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("show", tmp_path / "nothing") == 1
    assert capsys.readouterr().err.startswith("s4weights: KeyNotFoundError: ")
    assert call("show", tmp_path / "nothing", "--json") == 1
    assert json.loads(capsys.readouterr().out)["error"] == "KeyNotFoundError"
    (tmp_path / "x").write_bytes(b"GIF89a" + bytes(90))
    assert call("show", tmp_path / "x") == 1
    assert "neither a ref nor an S4 file" in capsys.readouterr().err


def test_doctor_finds_every_bit_and_demands_a_gpu_only_when_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call("doctor", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"]
    assert report["cpu"]["cases"] > 500
    assert report["cpu"]["mismatches"] == 0
    if not torch.cuda.is_available():
        assert call("doctor", "--require-gpu") == 1


def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["nonsense"], ["ls"]):
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code == 2


@pytest.mark.parametrize(
    "command", [[], ["ls"], ["show"], ["verify"], ["export"], ["rm"], ["gc"], ["doctor"]]
)
def test_every_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*command, "--help"])
    assert exit_.value.code == 0
    assert "usage: s4weights" in capsys.readouterr().out
