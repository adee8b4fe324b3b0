#!/usr/bin/env python3
"""Compares `qdelta eval` with lm-evaluation-harness, example by example.

    scripts/compare_harness.py --qdelta build/qdelta --model MODEL --data DATA [--tasks lambada,piqa] [--limit N]

Starts `qdelta serve` on the model, lets the harness's own `local-completions` client run its own task code (prompts,
metrics) against it, runs `qdelta eval` on the same model and files, and compares: the same answer on every example, the
same accuracy, and the same perplexity to within --tolerance (1e-4, relative). Exits with 1 where anything differs.

Needs `pip install "lm_eval[api]"`; says so and exits with 77 where it is missing. DATA is a folder with the files that
`qdelta eval` reads (docs/serving.md says which); nothing is fetched from anywhere.
"""

import argparse
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
TASKS = {
    "lambada_openai": ("lambada/lambada_openai.yaml", "test", "lambada_openai_test.jsonl", json_lines, dict),
    "arc_easy": ("arc/arc_easy.yaml", "test", "arc_easy.jsonl", json_lines, arc),
    "arc_challenge": ("arc/arc_challenge.yaml", "test", "arc_challenge.jsonl", json_lines, arc),
    "piqa": ("piqa/piqa.yaml", "validation", "piqa_valid.jsonl", piqa_lines, dict),
    "winogrande": ("winogrande/default.yaml", "validation", "winogrande.jsonl", json_lines, winogrande),
    "wikitext": ("wikitext/wikitext.yaml", "test", "wikitext2_raw_test.txt", wikitext_pages, dict),
}


def write_task(name, data, folder, limit):
    """The harness's task with our documents in the place of its own."""
    import lm_eval

    yaml, split, file, read, convert = TASKS[name]
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
    return len(documents)


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


def run_harness(url, names, folder, length, batch, concurrent):
    import lm_eval
    from lm_eval.tasks import TaskManager

    return lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": "qdelta",
            "base_url": url + "/v1/completions",
            "tokenizer_backend": "remote",
            "max_length": length + 1,  # the harness keeps one for the token that it has generated
            "batch_size": batch,
            "num_concurrent": concurrent,
        },
        tasks=[f"{name}_local" for name in names],
        task_manager=TaskManager(include_path=folder),
        bootstrap_iters=0,
        log_samples=True,
    )


def harness_examples(samples):
    """For each document: what it scored, the log-likelihoods and whether each was greedy."""
    examples = []
    for sample in sorted(samples, key=lambda sample: sample["doc_id"]):
        responses = [response[0] for response in sample["resps"]]
        if not isinstance(responses[0], (list, tuple)):  # rolling: the log-likelihood alone
            responses = [(response, None) for response in responses]
        scores = {name: sample[name] for name in ("acc", "acc_norm") if name in sample}
        examples.append({"scores": scores, "log_likelihoods": [float(r[0]) for r in responses]})
    return examples


def run_eval(qdelta, model, names, data, limit, length, folder, more):
    examples, report = pathlib.Path(folder) / "examples.jsonl", pathlib.Path(folder) / "report.json"
    by_task, results = {name: [] for name in names}, {}
    for name in names:
        # The client's rolling windows are one token shorter than what it allows a context with its continuation.
        most = length - 1 if name == "wikitext" else length
        # It asks the server for tokens without a begin-of-text token before every text.
        command = [qdelta, "eval", "--model", model, "--tasks", name, "--data", data, "--bos", "off"]
        command += ["--limit", str(limit), "--max-length", str(most), "--bootstrap", "0"]
        command += ["--out", str(report), "--log-examples", str(examples), *more]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for line in json_lines(examples):
            by_task[line["task"]].append(line)
        results.update(json.loads(report.read_text())["results"])
    return by_task, results


def near(ours, theirs, tolerance):
    return abs(ours - theirs) <= tolerance * max(abs(theirs), 1e-12)


def compare(name, theirs, their_results, ours, our_results, tolerance):
    """Prints what there is to see of a task; returns whether all is the same."""
    good = len(theirs) == len(ours)
    if not good:
        print(f"{name}: {len(theirs)} examples in the harness, {len(ours)} in qdelta")
    worst = 0.0
    for index, (their, our) in enumerate(zip(theirs, ours)):
        # Rolling windows are one number there.
        likelihoods = our["log_likelihoods"]
        if len(their["log_likelihoods"]) == 1:
            likelihoods = [sum(likelihoods)]
        for a, b in zip(likelihoods, their["log_likelihoods"], strict=True):
            worst = max(worst, abs(a - b) / max(abs(b), 1.0))
        for metric, score in their["scores"].items():
            if float(our["values"][metric]) != float(score):
                good = False
                print(f"{name} example {index}: {metric} is {our['values'][metric]}, in the harness {score}")
                print(f"    log-likelihoods {likelihoods}, in the harness {their['log_likelihoods']}")
    for key, value in their_results.items():
        metric, _, kind = key.partition(",")
        if not isinstance(value, float) or kind != "none" or metric.endswith("_stderr"):
            continue
        our = our_results[metric]
        same = near(our, value, tolerance if "acc" not in metric else 1e-12)
        good = good and same
        print(f"{name:16} {len(ours):6} {metric:16} qdelta {our:<18.10g} harness {value:<18.10g} {'same' if same else 'DIFFERENT'}")
    print(f"{name:16} {len(ours):6} log-likelihoods  differ by at most {worst:.1e} of their size (or of 1)")
    return good and worst <= tolerance


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qdelta", default="build/qdelta", help="the binary")
    parser.add_argument("--model", required=True, help="model folder")
    parser.add_argument("--data", required=True, help="folder with the data sets")
    parser.add_argument("--tasks", default=",".join(TASKS), help="of " + ", ".join(TASKS))
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
    names = arguments.tasks.split(",")
    unknown = [name for name in names if name not in TASKS]
    if unknown:
        sys.exit(f"there is no task {unknown[0]}; there are {', '.join(TASKS)}")
    more = ["--device", arguments.device]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_HOME"] = folder + "/hf"  # the harness's copies of our data
        for name in names:
            write_task(name, arguments.data, folder, arguments.limit)
        with Server(arguments.qdelta, arguments.model, more) as server:
            theirs = run_harness(server.url, names, folder, arguments.length, arguments.batch, arguments.concurrent)
        ours, our_results = run_eval(
            arguments.qdelta, arguments.model, names, arguments.data, arguments.limit, arguments.length, folder, more
        )
    good = True
    for name in names:
        local = f"{name}_local"
        examples = harness_examples(theirs["samples"][local])
        good = compare(name, examples, theirs["results"][local], ours[name], our_results[name], arguments.tolerance) and good
    print("all the same" if good else "NOT the same")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
