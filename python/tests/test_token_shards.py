"""Shards of the engine, read with NumPy."""

from __future__ import annotations

import json

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


def test_what_is_no_shard(tmp_path):
    with pytest.raises(FileNotFoundError, match="qdelta tokenize"):
        qdelta.TokenShards(tmp_path)
    (tmp_path / "shards.json").write_text("[]")
    with pytest.raises(ValueError, match="shards.json"):
        qdelta.TokenShards(tmp_path)
    (tmp_path / "shards.json").write_text(json.dumps({"shards": [{"file": "a"}]}))
    (tmp_path / "a").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="no token shard"):
        qdelta.TokenShards(tmp_path)
    write_shard(tmp_path / "a", range(100))
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:100])
    with pytest.raises(ValueError, match="cut off"):
        qdelta.TokenShards(tmp_path)
