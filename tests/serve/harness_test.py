#!/usr/bin/env python3
"""lm-evaluation-harness against `qdelta serve` and `qdelta eval`: the same on examples of our own.

    tests/serve/harness_test.py QDELTA

Trains a small model on the questions themselves, so that its answers are not all alike. Exits with 77, which ctest takes
for skipped, where this Python has no harness.
"""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

QUESTIONS = [
    ("What falls from clouds?", ["rain", "stones", "bread"], 0),
    ("Which animal says moo?", ["the cat", "the cow", "a very small fish"], 1),
    ("What do bees make?", ["honey", "glass", "ink", "wool"], 0),
    ("Where does the sun rise?", ["in the west", "in the north", "in the east"], 2),
    ("What is ice made of?", ["sand", "water"], 1),
    ("How many legs has a spider?", ["two", "eight", "one hundred"], 1),
]
SENTENCES = [
    "The ferry was late, so the two sisters sat down on the quay and shared the last of the bread",
    "He knocked twice, waited, and knocked again, but nobody came to open the door",
    "Nobody had told the new baker that the oven was older than the town itself",
    "“It is not far”, she said, and then they walked until it was dark",
    "All summer the well had been dry, and now the cellar was full of water",
]
OPTIONS = [
    ("The trophy did not fit into the case because the trophy", "The trophy did not fit into the case because the case", "was too big.", 0),
    ("Anna thanked Eva for the help that Anna", "Anna thanked Eva for the help that Eva", "had given.", 1),
    ("The dog chased the cat until the dog", "The dog chased the cat until the cat", "climbed a tree.", 1),
]
PAGES = """
 = Windmill = 

 A windmill turns wind into work . Its sails , usually four , are set to the wind by hand or by a fan @-@ tail .

 = = History = = 

 The first ones stood in Persia ; they ground corn and raised water .

 = Lighthouse = 

 A lighthouse ( often on a rock ) shows ships where the coast is . Its lamp burned oil , later gas , and now electricity .
"""


def write(folder):
    def lines(name, records):
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        (folder / name).write_text(text, encoding="utf-8")

    questions = [{"query": f"Question: {q}", "choices": choices, "gold": gold} for q, choices, gold in QUESTIONS]
    lines("arc_easy.jsonl", questions)
    lines("arc_challenge.jsonl", questions[::-1])
    lines("piqa_valid.jsonl", [{"goal": q, "sol1": c[0], "sol2": c[1]} for q, c, _ in QUESTIONS])
    (folder / "piqa_valid_labels.txt").write_text("".join(f"{min(gold, 1)}\n" for _, _, gold in QUESTIONS))
    lines("lambada_openai_test.jsonl", [{"text": sentence} for sentence in SENTENCES])
    lines("winogrande.jsonl", [{"context_options": [a, b], "continuation": c, "gold": g} for a, b, c, g in OPTIONS])
    (folder / "wikitext2_raw_test.txt").write_text(PAGES, encoding="utf-8")
    book = SENTENCES + [f"Question: {q}\nAnswer: {choices[gold]}" for q, choices, gold in QUESTIONS]
    book += [(a, b)[g] + " " + c for a, b, c, g in OPTIONS] + [PAGES]
    (folder / "book.txt").write_text("\n\n".join(book), encoding="utf-8")


def test(qdelta, folder):
    write(folder)
    command = [qdelta, "train", "--text", folder / "book.txt", "--out", folder / "run", "--steps", "60", "--layers", "2"]
    command += ["--hidden-size", "48", "--heads", "2", "--head-dim", "16", "--seq-len", "128", "--rows", "4", "--lr", "0.01"]
    command += ["--warmup", "5", "--eval-every", "0"]
    trained = subprocess.run([str(word) for word in command], check=False, capture_output=True, text=True)
    if trained.returncode != 0:
        sys.exit(f"qdelta train failed: {trained.stderr}")
    model = sorted((folder / "run" / "checkpoints").iterdir())[-1]
    script = pathlib.Path(__file__).parents[2] / "scripts" / "compare_harness.py"
    command = [sys.executable, script, "--qdelta", qdelta, "--model", model, "--data", folder, "--length", "100"]
    return subprocess.run([str(word) for word in command], check=False).returncode


if importlib.util.find_spec("lm_eval") is None:
    print(f"skipped: {sys.executable} has no lm-evaluation-harness (pip install 'lm_eval[api]')")
    sys.exit(77)
with tempfile.TemporaryDirectory() as temporary:
    sys.exit(test(sys.argv[1], pathlib.Path(temporary)))
