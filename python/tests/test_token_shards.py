"""Shards of the engine, read with NumPy."""

from __future__ import annotations

import json
import pickle
import threading
import time

import numpy as np
import pytest
import qdelta


@pytest.fixture
def shards_v1(golden):
    return golden.parent / "data" / "fixtures" / "shards_v1"


def write_shard(path, tokens, version=2, vocab_size=300):
    header = np.zeros(1, dtype=qdelta.token_shards._HEADER)
    header["magic"], header["version"], header["width"] = b"QDTOKENS", version, 2
    header["tokens"], header["documents"], header["vocab_size"] = len(tokens), 1, vocab_size
    data = np.asarray(tokens, dtype="<u2").tobytes()
    path.write_bytes(header.tobytes() + data + b"\0" * (-len(data) % 8) + np.uint64(len(tokens)).tobytes())


def test_a_shard_that_the_engine_wrote(shards_v1):
    data = qdelta.TokenShards(shards_v1)
    assert data.vocab_size == 258
    text = bytes(int(t) for t in data.read(0, len(data)) if t < 256).decode()
    assert len(text) > 20 and text.isprintable() | ("\n" in text)
    assert np.array_equal(data.read(3, 5), data.read(0, len(data))[3:8])


def test_several_shards_are_one_sequence(tmp_path):
    write_shard(tmp_path / "a", range(10))
    write_shard(tmp_path / "b", range(10, 23))
    (tmp_path / "shards.json").write_text(json.dumps({"shards": [{"file": "a"}, {"file": "b"}]}))
    data = qdelta.TokenShards(tmp_path)
    assert len(data) == 23
    assert data.read(7, 10).tolist() == list(range(7, 17))
    with pytest.raises(IndexError):
        data.read(20, 4)
    # Two processes see every piece once in a pass, none of them the other's.
    seen = [tuple(row) for step in range(3) for rank in range(2) for row in data.batch(step, 1, 3, rank, 2)]
    assert len(set(seen)) == 6 and all(len(row) == 4 for row in seen)
    assert all(row == tuple(range(row[0], row[0] + 4)) for row in seen)
    with pytest.raises(ValueError, match="too few"):
        data.batch(0, 1, 30)


@pytest.fixture
def thousand(tmp_path):
    write_shard(tmp_path / "a", range(1001))
    (tmp_path / "shards.json").write_text(json.dumps({"shards": [{"file": "a"}]}))
    return qdelta.TokenShards(tmp_path)


def test_threads_read_at_once(thousand, monkeypatch):
    """Of passes and seeds of their own, while another's order is being made."""
    wanted = [thousand.batch(0, 4, 10, seed=seed).tolist() for seed in range(4)]
    right = np.random.default_rng

    def slow(seed):
        time.sleep(0.01)
        return right(seed)

    monkeypatch.setattr(np.random, "default_rng", slow)
    wrong = []

    def read(seed):
        for _ in range(5):
            if thousand.batch(0, 4, 10, seed=seed).tolist() != wanted[seed]:
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(n // 2,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_other_processes_open_the_files_themselves(thousand, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for shards in (thousand, qdelta.TokenShards(".")):
        data = pickle.dumps(shards)
        assert len(data) < 1000
        monkeypatch.chdir("/")
        assert np.array_equal(pickle.loads(data).batch(3, 2, 10), thousand.batch(3, 2, 10))
        monkeypatch.chdir(tmp_path)


def test_wrong_arguments_are_named(thousand):
    right = {"step": 0, "batch": 1, "tokens": 4}
    for wrong in ({"step": -1}, {"batch": 0}, {"tokens": 0}, {"rank": 2, "ranks": 2}, {"rank": -1}, {"ranks": 0}, {"seed": -1}):
        with pytest.raises(ValueError, match=f"^{next(iter(wrong))} is "):
            thousand.batch(**{**right, **wrong})
    with pytest.raises(TypeError, match="^batch is 2.0"):
        thousand.batch(**{**right, "batch": 2.0})


def test_what_is_no_shard(tmp_path):
    with pytest.raises(FileNotFoundError, match="qdelta tokenize"):
        qdelta.TokenShards(tmp_path)
    (tmp_path / "shards.json").write_text("[]")
    with pytest.raises(ValueError, match="shards.json"):
        qdelta.TokenShards(tmp_path)
    for text in ('{"shards": [{"file": 3}]}', '{"shards": 5}', "{}"):
        (tmp_path / "shards.json").write_text(text)
        with pytest.raises(ValueError, match=r"shards\.json is no list of shards"):
            qdelta.TokenShards(tmp_path)
    (tmp_path / "shards.json").write_text(json.dumps({"shards": [{"file": "a"}]}))
    (tmp_path / "a").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="no token shard"):
        qdelta.TokenShards(tmp_path)
    write_shard(tmp_path / "a", range(100))
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:100])
    with pytest.raises(ValueError, match="cut off"):
        qdelta.TokenShards(tmp_path)
