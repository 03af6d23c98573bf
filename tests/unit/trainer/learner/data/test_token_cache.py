"""A file of any size as tokens on the disk: what is read of it, what a kill or damage costs, and who may write."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from synth.chat.messages import TrainingRow
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.dataset_file import DatasetFile
from synth.trainer.learner.data.sft_dataset import SftDataset, encode_file, encode_rows, load_tokenizer
from synth.trainer.learner.data.token_store import StoredSequences
from synth.trainer.learner.methods.sft import SftTrainer
from synth.trainer.learner.model.policy import load_policy
from tests.unit.trainer.jobs import sft_job
from tests.unit.trainer.sft_rows import addition_rows, token_cache, training_rows, write_rows

ROWS = 60
#: Some eight rows of `addition_rows`.
CHUNK = 1000
NAMES = ("tokens", "weights", "cu_seqlens")


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Any:
    return load_tokenizer(model_dir)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rows = addition_rows(ROWS)
    rows[3]["messages"][1]["weight"] = 0.3
    rows[5]["messages"][1]["weight"] = 0
    rows[7]["messages"][0]["content"] *= 30
    return write_rows(tmp_path / "rows.jsonl", rows)


def encode(path: Path, tokenizer: Any, folder: Path, **more: Any) -> SftDataset[StoredSequences]:
    cache = token_cache(folder, chunk_bytes=more.pop("chunk_bytes", CHUNK), processes=more.pop("processes", 2))
    file = DatasetFile(path, examples=more.pop("examples", None))
    return encode_file(file, tokenizer, sequence_length=128, cache=cache, **more)


def chunks(folder: Path) -> dict[str, int]:
    """The chunks, and what tells whether one was made again."""
    return {file.name: file.stat().st_ino for file in sorted(folder.glob("*/*.tokens"))}


def assert_same(stored: SftDataset[Any], whole: SftDataset[Any]) -> None:
    assert stored.counts == whole.counts
    assert len(stored) == len(whole)
    order = list(reversed(range(len(whole))))
    assert stored.sequences.lengths(order) == whole.sequences.lengths(order)
    for name in NAMES:
        one, other = (getattr(data.sequences.select(order), name) for data in (stored, whole))
        assert one.dtype == other.dtype
        assert (one == other).all()


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("chunk_bytes", [1, CHUNK, 1 << 20])
def test_the_chunks_of_a_file_are_what_the_whole_of_it_would_be(
    path: Path, tokenizer: Any, tmp_path: Path, processes: int, chunk_bytes: int
) -> None:
    rows = training_rows([json.loads(line) for line in path.read_text().splitlines()])
    found = encode(path, tokenizer, tmp_path / "c", chunk_bytes=chunk_bytes, processes=processes)
    assert_same(found, encode_rows(rows, tokenizer, sequence_length=128))
    first = encode(path, tokenizer, tmp_path / "c", chunk_bytes=chunk_bytes, examples=9)
    assert_same(first, encode_rows(rows[:9], tokenizer, sequence_length=128))


def test_training_on_the_disk_gives_the_same_bytes_as_training_on_memory(
    path: Path, tokenizer: Any, model_dir: Path, tmp_path: Path
) -> None:
    stored = encode(path, tokenizer, tmp_path / "c")
    whole = encode_rows(list(DatasetFile(path).read(TrainingRow, 0, 1 << 40)), tokenizer, sequence_length=128)
    job = sft_job(steps=3, validation_every=3)
    found: list[list[dict[str, float]]] = []
    for data in (stored, whole):
        trainer = SftTrainer(load_policy(model_dir, job), job, data, validation=data)
        found.append([trainer.step().values for _ in range(3)])
    for one, other in zip(*found, strict=True):
        for name in ("loss", "grad_norm", "tokens", "trained_tokens", "truncated_rows"):
            assert one[name] == other[name], name
    assert found[0][2]["validation_loss"] == found[1][2]["validation_loss"]


def test_a_file_is_tokenised_once_and_again_when_it_changes(path: Path, tokenizer: Any, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    said: list[tuple[int, int]] = []
    encode(path, tokenizer, folder, progress=lambda done, of: said.append((done, of)))
    size = path.stat().st_size
    assert said[-1] == (size, size)
    assert [done for done, _ in said] == sorted(done for done, _ in said)
    first = chunks(folder)
    assert len(first) > 4
    encode(path, tokenizer, folder)
    assert chunks(folder) == first
    write_rows(path, addition_rows(ROWS + 1))
    assert encode(path, tokenizer, folder).counts["rows"] == ROWS + 1
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "gone"])
def test_a_chunk_that_is_damaged_is_made_again_and_no_other(
    path: Path, tokenizer: Any, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "c"
    whole = encode(path, tokenizer, folder)
    first = chunks(folder)
    file = next(folder.glob("*/000002.tokens"))
    body = bytearray(file.read_bytes())
    body[len(body) // 3] ^= 1
    bodies = {"cut": body[:-100], "flipped": body, "empty": b"", "gone": b""}
    os.link(file, tmp_path / "damaged")  # holds its inode, so that another file cannot have it
    file.unlink()
    if damage != "gone":
        file.write_bytes(bodies[damage])
        os.link(file, tmp_path / "held")
        first["000002.tokens"] = file.stat().st_ino
    again = encode(path, tokenizer, folder)
    assert {name for name, made in chunks(folder).items() if made != first[name]} == {"000002.tokens"}
    assert_same(again, whole)


def test_a_chunk_that_is_damaged_while_it_is_in_use_is_named(path: Path, tokenizer: Any, tmp_path: Path) -> None:
    data = encode(path, tokenizer, tmp_path / "c")
    for file in (tmp_path / "c").glob("*/*.tokens"):
        os.truncate(file, 10)
    with pytest.raises(TrainingFailed, match=r"\.tokens is not the chunk of tokens that was written") as failed:
        data.sequences.select([0])
    assert failed.value.code == "bad_cache"


def test_a_bad_line_has_the_number_that_it_has_in_the_file(tokenizer: Any, tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in addition_rows(ROWS)]
    lines[10] = ""
    lines[40] = '{"prompt": "x"}'
    lines[50] = '{"prompt": "a later one"}'
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(TrainingFailed, match=r"rows\.jsonl:41: not a row to train on .*; expected messages\[\]"):
        encode(path, tokenizer, tmp_path / "c", processes=4)


def test_a_row_that_cannot_be_rendered_has_its_number_among_the_rows(tokenizer: Any, tmp_path: Path) -> None:
    rows = addition_rows(ROWS)
    rows[40]["messages"][0]["content"] = [
        {"type": "image_url", "image_url": {"url": "blob://orgs/o/images/" + "0" * 64}}
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(["", *map(json.dumps, rows)]))
    with pytest.raises(TrainingFailed, match="row 41 shows an image, and the model sees none"):
        encode(path, tokenizer, tmp_path / "c")


def test_a_file_of_which_nothing_is_trained_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "a"}]}] * 30
    with pytest.raises(TrainingFailed, match="none of the 30 rows has an assistant token to train within 128 tokens"):
        encode(write_rows(tmp_path / "rows.jsonl", rows), tokenizer, tmp_path / "c")


#: Tokenises the first file into the second folder, and says each progress; killed, it says no more.
_CHILD = """
import sys
from pathlib import Path
from tests.unit.trainer.learner.data.test_token_cache import encode, load_tokenizer
encode(Path(sys.argv[1]), load_tokenizer(Path(sys.argv[3])), Path(sys.argv[2]),
       chunk_bytes=25_000, processes=2, progress=lambda done, of: print(done, flush=True))
print("end", flush=True)
"""


def child(path: Path, folder: Path, model_dir: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _CHILD, str(path), str(folder), str(model_dir)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.long
@pytest.mark.parametrize("to", ["the process", "one that tokenises"])
def test_what_is_killed_while_it_tokenises_costs_the_chunks_in_the_works(
    tokenizer: Any, model_dir: Path, tmp_path: Path, to: str
) -> None:
    path, folder = write_rows(tmp_path / "large.jsonl", addition_rows(5_000)), tmp_path / "c"
    size = path.stat().st_size
    before: dict[str, int] = {}
    with child(path, folder, model_dir) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() != "end" and size // 2 < int(line) < size:
                before = chunks(folder)
                os.kill(process.pid if to == "the process" else _child_of(process.pid), signal.SIGKILL)
                break
        ended = [line.strip() for line in process.stdout]
    assert before
    assert (ended[-1:] == ["end"]) == (to != "the process")
    again = encode(path, tokenizer, folder, chunk_bytes=25_000)
    after = chunks(folder)
    assert {name: after[name] for name in before} == before
    assert again.counts["rows"] == 5_000
    assert not list(folder.glob("*/.*"))


def _child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@pytest.mark.long
def test_two_processes_at_once_make_each_chunk_once(tokenizer: Any, model_dir: Path, tmp_path: Path) -> None:
    path, folder = write_rows(tmp_path / "large.jsonl", addition_rows(2_500)), tmp_path / "c"
    with child(path, folder, model_dir) as first:
        assert first.stdout is not None
        first.stdout.readline()
        said: list[int] = []
        data = encode(path, tokenizer, folder, chunk_bytes=25_000, progress=lambda done, of: said.append(done))
        assert first.stdout.read().endswith("end\n")
    assert data.counts["rows"] == 2_500
    assert said
    assert [int(name[:6]) for name in chunks(folder)] == list(range(len(chunks(folder))))


def test_what_was_used_longest_ago_is_removed_and_never_what_is_in_use(
    path: Path, tokenizer: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "c"
    data = encode(path, tokenizer, folder)
    [used] = folder.iterdir()
    os.utime(used / "use", (1, 1))
    small = token_cache(folder, max_bytes=0)
    old = small.use("old")
    (old.path / "000000.tokens").write_bytes(b"x" * 100)
    small.evict()
    assert {used, old.path} <= set(folder.iterdir())
    old.close()
    small.evict()
    assert list(folder.iterdir()) == [used]
    data.sequences.select([0])
    del data
    small.evict()
    assert list(folder.iterdir()) == []
