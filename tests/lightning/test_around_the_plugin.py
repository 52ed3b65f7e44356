"""What does not go through the plugin, or not through a Trainer: all of it works or says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from bits import assert_same_state
from lightning_trainings import make_model, make_trainer, save_every_epoch

import s4_lightning
import s4weights
from s4_lightning import S4CheckpointIO


@pytest.fixture
def checkpoint(namespace: ModuleType, tmp_path: Path) -> tuple[Any, Path]:
    """A trained model and the path of its last checkpoint."""
    callback = save_every_epoch(namespace, tmp_path / "run")
    trainer = make_trainer(namespace, S4CheckpointIO(), max_epochs=1, callbacks=[callback])
    model = make_model(namespace, width=3)
    trainer.fit(model)
    return model, tmp_path / "run" / "last.ckpt"


@pytest.mark.parametrize("kind", [str, Path])
def test_load_from_checkpoint_reads_s4(checkpoint: tuple[Any, Path], kind: type) -> None:
    model, path = checkpoint

    loaded = type(model).load_from_checkpoint(kind(path))

    assert_same_state(dict(model.state_dict()), dict(loaded.state_dict()))
    assert dict(loaded.hparams) == {"width": 3}


def test_load_from_checkpoint_still_reads_torch_files(
    checkpoint: tuple[Any, Path], tmp_path: Path
) -> None:
    model, path = checkpoint
    torch.save(s4weights.load(path), tmp_path / "plain.ckpt")

    for source in (tmp_path / "plain.ckpt", (tmp_path / "plain.ckpt").open("rb")):
        loaded = type(model).load_from_checkpoint(source)
        assert_same_state(dict(model.state_dict()), dict(loaded.state_dict()))
    with pytest.raises(FileNotFoundError):
        type(model).load_from_checkpoint(tmp_path / "missing.ckpt")
    source.close()


def test_the_hook_can_be_taken_back(checkpoint: tuple[Any, Path]) -> None:
    model, path = checkpoint
    s4_lightning.unhook_load_from_checkpoint()
    try:
        with pytest.raises(Exception, match="(invalid load key|[Ww]eights.?only)"):
            type(model).load_from_checkpoint(path)
    finally:
        s4_lightning.hooks.hook(S4CheckpointIO)
    assert type(model).load_from_checkpoint(path)


def test_load_from_checkpoint_reads_s3(package: ModuleType, s3_url: str) -> None:
    trainer = make_trainer(package, S4CheckpointIO(), max_epochs=1, enable_checkpointing=False)
    model = make_model(package)
    trainer.fit(model)
    trainer.save_checkpoint(f"{s3_url}/a.ckpt")

    for url in (f"{s3_url}/a.ckpt", f"s4{s3_url[2:]}/a.ckpt"):
        loaded = type(model).load_from_checkpoint(url)
        assert_same_state(dict(model.state_dict()), dict(loaded.state_dict()))


@pytest.mark.parametrize("fabric", ["lightning.fabric", "lightning_fabric"])
def test_fabric_saves_and_loads_through_the_plugin(fabric: str, tmp_path: Path) -> None:
    module = pytest.importorskip(fabric)
    plugin = S4CheckpointIO()
    runner = module.Fabric(accelerator="cpu", devices=1, plugins=[plugin])
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    wrapped, wrapped_optimizer = runner.setup(model, optimizer)
    runner.backward(wrapped(torch.ones(2, 8)).sum())
    wrapped_optimizer.step()
    state = {"model": wrapped, "optimizer": wrapped_optimizer, "step": 3}
    before = {k: v.clone() for k, v in model.state_dict().items()}

    runner.save(tmp_path / "a.ckpt", state)
    with torch.no_grad():
        model.weight.zero_()
    rest = runner.load(tmp_path / "a.ckpt", state)

    assert [info.kind for info in plugin.history] == ["base"]
    assert_same_state(before, dict(model.state_dict()))
    assert rest == {}


class PlannedError(RuntimeError):
    """Raised by a training."""


@pytest.mark.filterwarnings("ignore:.*was called without a model")
@pytest.mark.filterwarnings("ignore:.*there is no last checkpoint available")
@pytest.mark.filterwarnings("ignore:.*resuming from a checkpoint that ended before the epoch")
def test_a_failed_training_leaves_its_exception_checkpoint_until_it_is_made_good(
    package: ModuleType, tmp_path: Path
) -> None:
    def fit(fail: bool) -> Any:
        callbacks = [
            package.callbacks.OnExceptionCheckpoint(tmp_path / "emergency"),
            save_every_epoch(package, tmp_path / "run", save_last=False),
        ]
        trainer = make_trainer(package, S4CheckpointIO(), max_epochs=2, callbacks=callbacks)
        model = make_model(package)

        def check(step: int) -> None:
            if fail and step == 3:
                raise PlannedError("as planned")

        model.at_step = check
        trainer.fit(model)
        return trainer

    with pytest.raises(PlannedError, match="as planned"):
        fit(fail=True)
    assert set(os.listdir(tmp_path / "emergency")) == {".s4", "on_exception.ckpt"}

    # Lightning itself resumes from it, and removes it when the training has ended well.
    assert fit(fail=False).global_step == 4
    assert not (tmp_path / "emergency" / "on_exception.ckpt").exists()
    left = [p for p in (tmp_path / "emergency").rglob("*") if p.is_file()]
    assert [p.name for p in left] in ([], ["store.json"])


def test_an_exception_and_an_interrupt_wait_for_what_is_being_saved(
    package: ModuleType, tmp_path: Path
) -> None:
    for error in (PlannedError("as planned"), KeyboardInterrupt()):
        plugin = S4CheckpointIO(wait=False)
        callback = save_every_epoch(package, tmp_path / "run")
        trainer = make_trainer(package, plugin, max_epochs=2, callbacks=[callback])
        model = make_model(package)

        def check(step: int, error: BaseException = error) -> None:
            if step == 2:
                raise error

        model.at_step = check
        with suppress(PlannedError, SystemExit):  # an interrupt ended quietly before 2.5
            trainer.fit(model)
        assert len(plugin.history) == 2
        assert plugin.load_checkpoint(tmp_path / "run" / "last.ckpt")["global_step"] == 2


def test_the_batch_size_scaler_works_and_leaves_nothing(
    package: ModuleType, tmp_path: Path
) -> None:
    from lightning.pytorch.tuner import Tuner

    model = make_model(package)
    model.batch_size = 2
    trainer = make_trainer(package, S4CheckpointIO(), max_epochs=1, default_root_dir=tmp_path)

    Tuner(trainer).scale_batch_size(model, max_trials=2, steps_per_trial=1)

    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def run_script(
    code: str, *arguments: str, timeout: float = 250
) -> subprocess.CompletedProcess[str]:
    directory = Path(arguments[0])
    directory.mkdir(parents=True, exist_ok=True)
    script = directory / "script.py"
    script.write_text(code)
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, str(Path(tests).parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env=os.environ | {"PYTHONPATH": path, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


COMMAND_LINE = """
import sys
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringModel
import s4_lightning

cli = LightningCLI(BoringModel, save_config_callback=None, args=[
    "fit", "--trainer.plugins+=s4_lightning.S4CheckpointIO", "--trainer.plugins.max_depth=3",
    "--trainer.max_steps=2", "--trainer.logger=false", "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false", f"--trainer.default_root_dir={sys.argv[1]}",
])
plugin = cli.trainer.strategy.checkpoint_io
assert isinstance(plugin, s4_lightning.S4CheckpointIO), plugin
assert plugin.options.max_depth == 3
print([info.kind for info in plugin.history])
"""


def test_the_command_line_of_lightning_takes_the_plugin(tmp_path: Path) -> None:
    pytest.importorskip("jsonargparse", reason="LightningCLI needs jsonargparse")
    done = run_script(COMMAND_LINE, str(tmp_path / "cli"))

    assert done.returncode == 0, done.stderr[-3000:]
    assert "['base']" in done.stdout


TWO_RANKS = """
import sys
import torch
import lightning.pytorch as package
from lightning_trainings import make_trainer, save_every_epoch
from lightning.pytorch.demos.boring_classes import BoringModel
from s4_lightning import S4CheckpointIO

if __name__ == "__main__":
    directory, strategy, epochs, resume = sys.argv[1:5]
    callback = save_every_epoch(package, directory + "/run", monitor=None, save_top_k=1)
    trainer = make_trainer(
        package, S4CheckpointIO(wait=False), max_epochs=int(epochs), callbacks=[callback],
        strategy=strategy, devices=2, limit_train_batches=2, limit_val_batches=0,
    )
    model = BoringModel()
    trainer.fit(model, ckpt_path="last" if resume == "resume" else None)
    if trainer.is_global_zero:
        torch.save(model.state_dict(), directory + "/returned.pt")
"""


def test_two_processes_save_and_resume(tmp_path: Path) -> None:
    for epochs, resume in (("1", "begin"), ("2", "resume")):
        done = run_script(TWO_RANKS, str(tmp_path), "ddp", epochs, resume)
        assert done.returncode == 0, done.stderr[-3000:]

    names = {name for name in os.listdir(tmp_path / "run") if name.endswith(".ckpt")}
    assert names == {"epoch=1-step=4.ckpt", "last.ckpt"}
    assert s4weights.load(tmp_path / "run" / "last.ckpt")["global_step"] == 4


def test_spawned_processes_save_and_give_their_weights_back(tmp_path: Path) -> None:
    done = run_script(TWO_RANKS, str(tmp_path), "ddp_spawn", "1", "begin")

    assert done.returncode == 0, done.stderr[-3000:]
    names = {name for name in os.listdir(tmp_path / "run") if name.endswith(".ckpt")}
    assert names == {"epoch=0-step=2.ckpt", "last.ckpt"}
    saved = s4weights.load(tmp_path / "run" / "last.ckpt")
    returned = torch.load(tmp_path / "returned.pt")
    assert_same_state(dict(saved["state_dict"]), dict(returned))


REQUEUED = """
import os, signal, sys
os.environ |= {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "1", "SLURM_JOB_NAME": "s4"}
import lightning.pytorch as package
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning_trainings import make_model, make_trainer
from s4_lightning import S4CheckpointIO

model = make_model(package)
model.at_step = lambda step: os.kill(os.getpid(), signal.SIGUSR1) if step == 1 else None
trainer = make_trainer(
    package, S4CheckpointIO(), SLURMEnvironment(requeue_signal=signal.SIGUSR1), max_epochs=2,
    default_root_dir=sys.argv[1], enable_checkpointing=False, num_nodes=1,
)
trainer.fit(model)
"""


def test_a_requeue_signal_saves_a_checkpoint_that_loads(tmp_path: Path) -> None:
    if not hasattr(signal, "SIGUSR1"):
        pytest.skip("no SIGUSR1 here")
    # Lightning ends with `scontrol requeue`, which is not there: the checkpoint is.
    run_script(REQUEUED, str(tmp_path))

    loaded = S4CheckpointIO().load_checkpoint(tmp_path / "hpc_ckpt_1.ckpt")
    assert loaded["global_step"] >= 1


def test_asynchronous_saves_of_lightning_work_and_are_advised_against(
    package: ModuleType, tmp_path: Path
) -> None:
    inner = S4CheckpointIO()
    plugin = package.plugins.io.AsyncCheckpointIO(inner)
    callback = save_every_epoch(package, tmp_path / "run")
    trainer = make_trainer(package, plugin, max_epochs=2, callbacks=[callback])

    with pytest.warns(UserWarning, match=r"S4CheckpointIO\(wait=False\).*copies the whole state"):
        trainer.fit(make_model(package))

    assert [info.step for info in inner.history] == [2, 2, 4, 4]
    assert inner.load_checkpoint(tmp_path / "run" / "last.ckpt")["global_step"] == 4
