"""examples/torch_train.py: FSDP2 on two processes of a CPU, and a checkpoint that the engine loads."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
if not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
    pytest.skip("this PyTorch has no FSDP2 (2.6 or newer)", allow_module_level=True)

import qdelta  # noqa: E402
from test_token_shards import write_shard  # noqa: E402

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "examples" / "torch_train.py"


def run(data, out, processes, batch, gpu=False):
    flags = ["--data", data, "--out", out, "--losses", out / "log.json", "--hidden", 32, "--layers", 2, "--heads", 2,
             "--tokens", 64, "--steps", 12, "--warmup", 2, "--batch", batch, "--lr", 0.01]  # fmt: skip
    launch = [sys.executable]
    if processes > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if not gpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    out.mkdir()
    done = subprocess.run(
        [*launch, str(SCRIPT), *map(str, flags)], capture_output=True, text=True, env=environment, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((out / "log.json").read_text())


@pytest.fixture
def data(tmp_path):
    """Numbers that follow each other."""
    folder = tmp_path / "shards"
    folder.mkdir()
    write_shard(folder / "a", np.tile(np.arange(97), 60), vocab_size=97)
    (folder / "shards.json").write_text(json.dumps({"shards": [{"file": "a"}]}))
    return folder


def share_of_right_next_tokens(logits, ids) -> float:
    return (logits[0].argmax(-1)[8:-1] == ids[0, 9:]).mean()


def test_two_processes_train_as_one_does_and_the_engine_loads_it(data, tmp_path):
    two = run(data, tmp_path / "two", 2, 2)
    one = run(data, tmp_path / "one", 1, 4)
    assert np.allclose(one, two, rtol=1e-3)
    assert two[-1] < two[0] - 0.5
    model = qdelta.LanguageModel.load(tmp_path / "two")
    other = qdelta.LanguageModel.load(tmp_path / "one")
    ids = np.arange(64)[None]
    logits = model.logits(ids)
    assert np.isfinite(logits).all()
    assert np.abs(logits - other.logits(ids)).max() < 0.05 * np.abs(logits).max()
    assert share_of_right_next_tokens(logits, ids) > 0.2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_one_process_on_a_gpu_learns_as_on_the_cpu(data, tmp_path):
    """In bfloat16 there, in float32 here."""
    there = run(data, tmp_path / "gpu", 1, 4, gpu=True)
    here = run(data, tmp_path / "cpu", 1, 4)
    assert np.allclose(there, here, rtol=2e-2)
    assert there[-1] < there[0] - 0.5
    ids = np.arange(64)[None]
    for device in ("cpu", "cuda"):
        logits = qdelta.LanguageModel.load(tmp_path / "gpu", device=device).logits(ids)
        assert share_of_right_next_tokens(logits, ids) > 0.2
