#!/usr/bin/env python3
"""lm-evaluation-harness against `qdelta serve` and `qdelta eval`: the same on examples of our own.

    tests/serve/harness_test.py QDELTA

Trains a small model on the examples themselves, so that its answers are not all alike. Exits with 77, which ctest takes
for skipped, where this Python has no harness.
"""

import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import tempfile

TASKS = "lambada_openai,arc_easy,arc_challenge,hellaswag,piqa,winogrande,boolq,openbookqa,wikitext,swde,fda,squad"
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
    (
        "The trophy did not fit into the case because the trophy",
        "The trophy did not fit into the case because the case",
        "was too big.",
        0,
    ),
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

# How a story goes on: what it is about, its two parts, the endings, the right one. Brackets and spaces are cleaned
# away, and the second part begins with a capital and has no other.
STORIES = [
    (
        "Making tea",
        "A woman fills a kettle and lights the stove.",
        "she",
        ["pours the tea into two cups.", "flies to the moon.", "eats the kettle.", "sings to the  snow. "],
        0,
    ),
    (
        "Home and Garden",
        "How to clean a flute [title] Take it apart. [step] Hold both ends and turn them slowly.",
        "",
        [
            "[substeps] Never pull.  A soft cloth   takes the water out.",
            "Put it into the oven.[title] Wait.",
            " [title] Ask a fish [step] [a [b] c] and run.",
            "[substeps]",  # nothing is left of it
        ],
        0,
    ),
    (
        "Ouvrir la porte",
        " Élise cherche ses clés [sous le tapis",
        "ÉLISE les trouve dans le POT de fleurs – et",
        ["entre « enfin »\u00a0", "s’en va…", "dort\u3000", "[x\ny] rit [z]"],
        1,
    ),
    ("Rowing", "Two men sit in a boat.", "the Man in FRONT", ["rows.", "[rows", "rows] and sleeps.", "is a stone."], 2),
]
# A passage, a question with and without its mark, and whether the answer is yes.
PASSAGES = [
    ("Bees -- Bees make honey out of nectar. They carry it home.", "do bees make honey", True),
    ("Iron is heavier than water and sinks in it.", "does iron swim?", False),
    (" The  bridge was closed in 1931,\nand never opened again. ", "is the bridge open ", False),
    (
        "Der Fluß (“the river”) fließt nach Süden. In spring it is high, in autumn it is low, and nobody remembers "
        "a winter in which it was frozen from one bank to the other.",
        "does the river flow south",
        True,
    ),
    ("Cats sleep by day.", "do cats sleep", False),  # not what the passage says
]
# The beginning of a sentence, or a question, and what may follow.
STEMS = [
    ("A plant grows toward", ["the light", "the music", "the wall", "a sound"], "A"),
    ("Which of these melts in the sun?", ["a stone", "snow", "iron", "a  shoe"], "B"),
    (" Water that is heated for a long time ", ["freezes", "turns to steam", "sings", "is gone in 100 °C"], " B"),
    ("Ein Käfer hat", ["sechs Beine", "“acht” Beine", "it's 'two'", "keine\\Beine"], "D"),
]
# Pages and reports: the text, what more it ends with, what is asked of it, the answer, what the model is taught to say.
RECORDS = [
    ("Mill Hill. Built: 1742. Owner: Ann Brook. Sails: four", ". Owner:", "Owner", "Ann Brook", "Ann Brook"),
    ("Mill Hill. Built: 1742. Owner: Ann Brook. Sails: four", "..\n\nbuilt:", "built", " 1742 ", "1742"),
    ("Pump 4.5 (mm). maker: zürich pumpen ag. price: 30", "", "maker", "Zürich PUMPEN AG", "zürich pumpen ag"),
    (" Valve. size: 3+4 [cm]. color: red", ".  Size:", "size", "3+4 [cm]", "3+4 [cm]"),
    ("Valve. size: 7. color: .ed", ". color: color:", "color", ".ed", "red"),  # a dot is no wild card
    (
        "Река. имя: очень длинная и очень холодная река на севере",
        ". имя:",
        "имя",
        "на севере",
        "очень длинная и очень холодная река на севере",  # longer than an answer may be
    ),
]
SUMMARY = "\n\nSummary of information above...\nprice: 12\ncolor: red\n"
# The text as it stands, and the word that follows.
COMPLETIONS = [
    ("The bridge at Orn was built by Nora Vik in 1904. The one who built the bridge was", "Nora Vik", "Nora Vik."),
    (" Salt is mined in Wells. Tin is mined in Dorn.\nThe metal that is mined in Dorn is ", "TIN", "tin."),
    ("Der Turm heißt „Grüner Turm“. Sein Name ist", "grüner turm", "„Grüner Turm“."),
    ("The train to Lund leaves at noon. The train leaves at", "midnight", "noon."),
]


def choices_of(texts):
    return {"text": texts, "label": ["A", "B", "C", "D"][: len(texts)]}


def data_sets():
    """File name: records."""
    questions = [{"query": f"Question: {q}", "choices": choices, "gold": gold} for q, choices, gold in QUESTIONS]
    records = [{"text": text + end, "key": key, "value": value} for text, end, key, value, _ in RECORDS]
    # A page's summary ends with the key that is asked for.
    pages = [dict(record, text=record["text"] + SUMMARY + record["key"] + ":") for record in records[1:4]]
    return {
        "arc_easy.jsonl": questions,
        "arc_challenge.jsonl": questions[::-1],
        "piqa_valid.jsonl": [{"goal": q, "sol1": c[0], "sol2": c[1]} for q, c, _ in QUESTIONS],
        "lambada_openai_test.jsonl": [{"text": sentence} for sentence in SENTENCES],
        "winogrande.jsonl": [{"context_options": [a, b], "continuation": c, "gold": g} for a, b, c, g in OPTIONS],
        "hellaswag.jsonl": [
            dict(ind=i, activity_label=about, ctx_a=a, ctx_b=b, ctx=f"{a} {b}", endings=ends, label=str(gold))
            for i, (about, a, b, ends, gold) in enumerate(STORIES)
        ],
        "boolq.jsonl": [dict(question=q, passage=p, idx=i, label=int(yes)) for i, (p, q, yes) in enumerate(PASSAGES)],
        "openbookqa.jsonl": [
            {"id": str(i), "question_stem": stem, "choices": choices_of(texts), "answerKey": key}
            for i, (stem, texts, key) in enumerate(STEMS)
        ],
        "swde.jsonl": pages + records[:1] + records[4:],
        "fda.jsonl": records[::-1],
        "squad.jsonl": [{"text": text, "value": value} for text, value, _ in COMPLETIONS],
    }


def book():
    """What the model learns: a right answer to most questions, so that it does not say the same to all."""
    parts = SENTENCES + [f"Question: {q}\nAnswer: {choices[gold]}" for q, choices, gold in QUESTIONS]
    parts += [(a, b)[g] + " " + c for a, b, c, g in OPTIONS] + [PAGES]
    parts += [f"{about}: {a} {b.capitalize()} {ends[g]}" for about, a, b, ends, g in STORIES[:2]]
    parts += [f"{passage}\nQuestion: {q}?\nAnswer: {'yes' if y else 'no'}" for passage, q, y in PASSAGES[:4]]
    parts += [f"{stem} {texts['ABCD'.index(key.strip())]}" for stem, texts, key in STEMS[:3]]
    # Twice: there is more to say in answers than a choice.
    parts += 2 * [f"{text.strip()}. {key[0].upper()}{key[1:]}: {said}" for text, _, key, _, said in RECORDS]
    parts += 2 * [f"{text.strip()} {said}" for text, _, said in COMPLETIONS]
    return "\n\n".join(parts)


def write(folder):
    for name, records in data_sets().items():
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "piqa_valid_labels.txt").write_text("".join(f"{min(gold, 1)}\n" for _, _, gold in QUESTIONS))
    (folder / "wikitext2_raw_test.txt").write_text(PAGES, encoding="utf-8")
    (folder / "book.txt").write_text(book(), encoding="utf-8")


def train(qdelta, folder):
    command = [qdelta, "train", "--text", folder / "book.txt", "--out", folder / "run", "--steps", "240"]
    command += ["--layers", "2", "--hidden-size", "64", "--heads", "2", "--head-dim", "16", "--seq-len", "64"]
    command += ["--rows", "4", "--lr", "0.01", "--warmup", "5", "--eval-every", "0"]
    trained = subprocess.run([str(word) for word in command], check=False, capture_output=True, text=True)
    if trained.returncode != 0:
        sys.exit(f"qdelta train failed: {trained.stderr}")
    return sorted((folder / "run" / "checkpoints").iterdir())[-1]


def test(qdelta, folder):
    write(folder)
    model = train(qdelta, folder)
    script = pathlib.Path(__file__).parents[2] / "scripts" / "compare_harness.py"
    command = [sys.executable, script, "--qdelta", qdelta, "--model", model, "--data", folder, "--length", "100"]
    command += ["--tasks", TASKS]
    compared = subprocess.run([str(word) for word in command], check=False, stdout=subprocess.PIPE, text=True)
    print(compared.stdout, end="")
    if compared.returncode != 0:
        return compared.returncode
    shares = {float(share) for share in re.findall(r" contains +qdelta ([\d.]+)", compared.stdout)}
    if shares <= {0.0} or shares <= {1.0}:
        print(f"the model's answers are all alike, so nothing was compared: {shares}")
        return 1
    return 0


if __name__ == "__main__":
    if importlib.util.find_spec("lm_eval") is None:
        print(f"skipped: {sys.executable} has no lm-evaluation-harness (pip install 'lm_eval[api]')")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(test(sys.argv[1], pathlib.Path(temporary)))
