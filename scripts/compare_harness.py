#!/usr/bin/env python3
"""Compares `qdelta eval` with lm-evaluation-harness, example by example.

    scripts/compare_harness.py --qdelta build/qdelta --model MODEL --data DATA [--tasks piqa,swde] [--limit N]

Starts `qdelta serve` on the model, lets the harness's own `local-completions` client run its own task code (prompts,
metrics) against it, runs `qdelta eval` on the same model and files, and compares: every example asked in the same words
and scored the same, the same accuracy, the same perplexity and log-likelihoods to within --tolerance (1e-4, relative),
and where the model writes an answer, the same answer to the letter. Exits with 1 where anything differs.

Needs `pip install "lm_eval[api]"`; says so and exits with 77 where it is missing. DATA is a folder with the files that
`qdelta eval` reads (docs/serving.md says which); nothing is fetched from anywhere. Without --tasks, all are compared
whose file is there.

In two things the recall tasks of the harness are not those of docs/evaluation.md, and are made so: its swde and fda
ask the text as it stands, not `text. Key:`, and its squad_completion takes up to 256 tokens to the next empty line, not
48 to the end of the line. No document is cut.
"""

import argparse
import importlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

SKIPPED = 77  # what ctest takes for "not run"
LONGEST = 32768  # tokens of a document that the model is to recall from: what the server takes as a prompt
ANSWER = 48  # tokens that the model may answer with
EXACT = ("acc", "acc_norm", "contains")  # a share of the examples, so nothing to round


def arc(line):
    """A line of our file as a document of the harness's."""
    labels = [chr(ord("A") + i) for i in range(len(line["choices"]))]
    return {
        "question": line["query"].removeprefix("Question: "),
        "choices": {"text": line["choices"], "label": labels},
        "answerKey": labels[line["gold"]],
    }


def winogrande(line):
    first, second = line["context_options"]
    return {
        "sentence": "_ " + line["continuation"],
        "option1": first,
        "option2": second,
        "answer": str(line["gold"] + 1),
    }


def keyed(line, end=None):
    """The harness asks the text as it stands. The papers' protocol, and ours, ends it with the key, in one way."""
    if not line.get("key"):
        return line
    text, key = line["text"].strip(), line["key"]
    if end:
        text = text.partition(end)[0]
    while text.lower().endswith(f"{key}:".lower()):
        text = text[: -len(key) - 1]
    return dict(line, text=f"{text.strip().strip('.')}. {key[0].upper()}{key[1:]}:")


def page(line):
    # Web pages end with other keys and their values, which the protocol leaves out.
    return keyed(line, "Summary of information above...")


def json_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def piqa_lines(path):
    labels = pathlib.Path(str(path).replace(".jsonl", "_labels.txt")).read_text().split()
    return [dict(line, label=int(label)) for line, label in zip(json_lines(path), labels, strict=True)]


def wikitext_pages(path):
    """A line ` = Title = ` begins a page, ` = = Section = = ` does not. The line break between two pages is neither's."""
    text = pathlib.Path(path).read_bytes().decode("utf-8")
    starts = [match.start() for match in re.finditer(r"^ = [^=\n].*[^=\n] = $", text, re.MULTILINE)]
    pages = [text[begin:end] for begin, end in zip([0, *starts], [*(start - 1 for start in starts), len(text)])]
    return [{"page": page} for page in pages if page.strip()]


# name: (its file in the harness, the split it reads, our file, what reads it, what makes documents of the lines)
LIKELIHOODS = {
    "lambada_openai": ("lambada/lambada_openai.yaml", "test", "lambada_openai_test.jsonl", json_lines, dict),
    "arc_easy": ("arc/arc_easy.yaml", "test", "arc_easy.jsonl", json_lines, arc),
    "arc_challenge": ("arc/arc_challenge.yaml", "test", "arc_challenge.jsonl", json_lines, arc),
    "hellaswag": ("hellaswag/hellaswag.yaml", "validation", "hellaswag.jsonl", json_lines, dict),
    "piqa": ("piqa/piqa.yaml", "validation", "piqa_valid.jsonl", piqa_lines, dict),
    "winogrande": ("winogrande/default.yaml", "validation", "winogrande.jsonl", json_lines, winogrande),
    "boolq": ("super_glue/boolq/default.yaml", "validation", "boolq.jsonl", json_lines, dict),
    "openbookqa": ("openbookqa/openbookqa.yaml", "test", "openbookqa.jsonl", json_lines, dict),
    "wikitext": ("wikitext/wikitext.yaml", "test", "wikitext2_raw_test.txt", wikitext_pages, dict),
}
# Tasks where the model writes. Name: (its module and class in the harness, our file, what makes documents of the lines)
RECALLS = {
    "swde": ("swde", "SWDE", "swde.jsonl", page),
    "fda": ("fda", "FDA", "fda.jsonl", keyed),
    "squad": ("squad_completion", "SQUADCompletion", "squad.jsonl", dict),
}
FILES = {name: row[2] for name, row in (LIKELIHOODS | RECALLS).items()}


def write_task(name, data, folder, limit):
    """The harness's task with our documents in the place of its own; its name."""
    import lm_eval

    yaml, split, file, read, convert = LIKELIHOODS[name]
    documents = [convert(line) for line in read(pathlib.Path(data) / file)]
    if limit:
        documents = documents[:limit]
    path = pathlib.Path(folder) / f"{name}.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
    original = pathlib.Path(lm_eval.__file__).parent / "tasks" / yaml
    splits = "".join(f"{other}_split: null\n" for other in ("training", "validation", "test") if other != split)
    (pathlib.Path(folder) / f"{name}_local.yaml").write_text(
        f"include: {original}\ntask: {name}_local\ntag: null\ndataset_path: json\ndataset_name: null\n"
        f"dataset_kwargs:\n  data_files:\n    {split}: {path}\n{splits}{split}_split: {split}\n"
    )
    return f"{name}_local"


def recall_task(name, data, limit):
    """The same for a task that is a class, which has no file to name other documents in."""
    import datasets

    module, kind, file, convert = RECALLS[name]
    lines = json_lines(pathlib.Path(data) / file)
    documents = [convert(line) for line in (lines[:limit] if limit else lines)]
    original = getattr(importlib.import_module(f"lm_eval.tasks.{module}.task"), kind)

    class Local(original):
        def download(self, *_, **__):
            asked = [{"text": document["text"], "value": document["value"]} for document in documents]
            self.dataset = {"validation": datasets.Dataset.from_list(asked)}

    task = Local()
    task.config.task = f"{name}_local"
    # Where this is empty, squad_completion takes the 48 tokens and the line's end that stand in its code. The harness
    # fills it with other defaults, which hide them. The other two do not look at it.
    task.config.generation_kwargs = {}
    return task


class Server:
    def __init__(self, qdelta, model, more):
        command = [qdelta, "serve", "--model", model, "--port", "0", *more]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        found = re.search(r"http://[^ ,]+", line)
        if not found:
            sys.exit(f"qdelta serve did not start: {line}{self.process.stderr.read()}")
        self.url = found.group()
        for _ in range(200):
            try:
                urllib.request.urlopen(self.url + "/health", timeout=10).close()
                return
            except OSError:
                time.sleep(0.05)
        sys.exit("qdelta serve does not answer")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(60) != 0:
            sys.exit(f"qdelta serve ended with {self.process.returncode}")


def run_harness(url, tasks, folder, length, batch, concurrent):
    import lm_eval
    from lm_eval.tasks import TaskManager

    return lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": "qdelta",
            "base_url": url + "/v1/completions",
            "tokenizer_backend": "remote",
            # It keeps one for the token that it has generated, and counts the last one of a text, which is predicted
            # but not read. `qdelta eval` counts what is read.
            "max_length": length + 2,
            "batch_size": batch,
            "num_concurrent": concurrent,
        },
        tasks=tasks,
        task_manager=TaskManager(include_path=folder),
        bootstrap_iters=0,
        log_samples=True,
    )


def harness_examples(samples):
    """For each document: what was asked, what it scored, and the log-likelihoods or what the model wrote."""
    examples = []
    for sample in sorted(samples, key=lambda sample: sample["doc_id"]):
        asked = [[part for part in arguments if isinstance(part, str)] for arguments in sample["arguments"]]
        example = {"asked": asked, "scores": {name: sample[name] for name in EXACT if name in sample}}
        responses = [response[0] for response in sample["resps"]]
        if isinstance(responses[0], str):
            example["text"] = responses[0]
        else:  # (log-likelihood, whether it was greedy), or when rolling the log-likelihood alone
            example["log_likelihoods"] = [float(r[0] if isinstance(r, (list, tuple)) else r) for r in responses]
        examples.append(example)
    return examples


def run_eval(qdelta, model, names, data, limit, length, folder, more):
    examples, report = pathlib.Path(folder) / "examples.jsonl", pathlib.Path(folder) / "report.json"
    by_task, results = {name: [] for name in names}, {}
    for name in names:
        # It asks the server for tokens without a begin-of-text token before every text.
        command = [qdelta, "eval", "--model", model, "--tasks", name, "--data", data, "--bos", "off"]
        command += ["--limit", str(limit), "--max-length", str(length), "--bootstrap", "0"]
        # A window around the answer, half of it before; so no document that the server takes is cut.
        command += ["--recall-length", str(3 * LONGEST)]
        command += ["--out", str(report), "--log-examples", str(examples), *more]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for line in json_lines(examples):
            by_task[line["task"]].append(line)
        results.update(json.loads(report.read_text())["results"])
    return by_task, results


def near(ours, theirs, tolerance):
    return abs(ours - theirs) <= tolerance * max(abs(theirs), 1e-12)


def asked_by_eval(example):
    """The texts as the harness has them: context and continuation, or the page, or the prompt."""
    if "prompt" in example:
        return [[example["prompt"]]]
    return example["texts"] if "texts" in example else [[example["text"]]]


def worst_of(our, their):
    """How far the log-likelihoods of an example are apart."""
    # Rolling windows are one number there.
    likelihoods, others = our["log_likelihoods"], their["log_likelihoods"]
    if len(others) == 1:
        likelihoods = [sum(likelihoods)]
    return max(abs(a - b) / max(abs(b), 1.0) for a, b in zip(likelihoods, others, strict=True))


def differences(our, their):
    """Of an example, in words: all that must be the same to the letter."""
    pairs = [("asked", asked_by_eval(our), their["asked"])]
    if "text" in their:
        pairs.append(("the answer", our["text"], their["text"]))
    pairs += [(metric, float(our["values"][metric]), float(score)) for metric, score in their["scores"].items()]
    return [f"{what} is {ours!r}, in the harness {theirs!r}" for what, ours, theirs in pairs if ours != theirs]


def compare(name, theirs, their_results, ours, our_results, tolerance):
    """Prints what there is to see of a task; returns whether all is the same."""
    good = len(theirs) == len(ours)
    if not good:
        print(f"{name}: {len(theirs)} examples in the harness, {len(ours)} in qdelta")
    for index, (their, our) in enumerate(zip(theirs, ours)):
        for difference in differences(our, their):
            good = False
            print(f"{name} example {index}: {difference}")
    for key, value in their_results.items():
        metric, _, kind = key.partition(",")
        if not isinstance(value, float) or kind != "none" or metric.endswith("_stderr"):
            continue
        our = our_results[metric]
        same = near(our, value, 1e-12 if metric in EXACT else tolerance)
        good = good and same
        verdict = "same" if same else "DIFFERENT"
        print(f"{name:16} {len(ours):6} {metric:16} qdelta {our:<18.10g} harness {value:<18.10g} {verdict}")
    if name in RECALLS:
        said = len({their["text"] for their in theirs})
        print(f"{name:16} {len(ours):6} answers          {said} distinct ones")
        return good
    worst = max((worst_of(our, their) for their, our in zip(theirs, ours)), default=0.0)
    print(f"{name:16} {len(ours):6} log-likelihoods  differ by at most {worst:.1e} of their size (or of 1)")
    return good and worst <= tolerance


def tasks_named(names, data):
    """Those of --tasks, or all whose file is there."""
    there = [name for name, file in FILES.items() if (pathlib.Path(data) / file).is_file()]
    chosen = names.split(",") if names else there
    for name in chosen:
        if name not in FILES:
            sys.exit(f"there is no task {name}; there are {', '.join(FILES)}")
        if name not in there:
            sys.exit(f"there is no {FILES[name]} in {data}, which {name} needs")
    if not chosen:
        sys.exit(f"there is none of {', '.join(FILES.values())} in {data}")
    return chosen


def both(arguments, names, folder):
    """What the harness has for each task, samples and results, and what `qdelta eval` has."""
    more = ["--device", arguments.device]
    likelihoods = [write_task(n, arguments.data, folder, arguments.limit) for n in names if n in LIKELIHOODS]
    recalls = [recall_task(n, arguments.data, arguments.limit) for n in names if n in RECALLS]
    theirs = {"samples": {}, "results": {}}
    with Server(arguments.qdelta, arguments.model, more) as server:
        for tasks, length in ((likelihoods, arguments.length), (recalls, LONGEST + ANSWER)):
            if not tasks:
                continue
            found = run_harness(server.url, tasks, folder, length, arguments.batch, arguments.concurrent)
            for part, values in theirs.items():
                values.update(found[part])
    ours = run_eval(
        arguments.qdelta, arguments.model, names, arguments.data, arguments.limit, arguments.length, folder, more
    )
    return theirs, ours


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qdelta", default="build/qdelta", help="the binary")
    parser.add_argument("--model", required=True, help="model folder")
    parser.add_argument("--data", required=True, help="folder with the data sets")
    parser.add_argument("--tasks", help="of " + ", ".join(FILES) + "; all whose file is in DATA, unless told")
    parser.add_argument("--limit", type=int, default=0, help="only the first so many examples of each task")
    parser.add_argument("--length", type=int, default=2048, help="most tokens that a likelihood is taken over")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="of perplexities and log-likelihoods, relative")
    parser.add_argument("--batch", type=int, default=8, help="prompts in one request of the harness")
    parser.add_argument("--concurrent", type=int, default=4, help="requests of the harness at once")
    parser.add_argument("--device", default="cpu", help="that qdelta runs on")
    arguments = parser.parse_args()
    try:
        import lm_eval  # noqa: F401
    except ImportError:
        print("skipped: lm-evaluation-harness is not installed (pip install 'lm_eval[api]')")
        sys.exit(SKIPPED)
    os.environ.update(HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1")
    names = tasks_named(arguments.tasks, arguments.data)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_HOME"] = folder + "/hf"  # the harness's copies of our data
        theirs, (ours, our_results) = both(arguments, names, folder)
    good = True
    for name in names:
        local = f"{name}_local"
        examples = harness_examples(theirs["samples"][local])
        results = theirs["results"][local]
        good = compare(name, examples, results, ours[name], our_results[name], arguments.tolerance) and good
    print("all the same" if good else "NOT the same")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
