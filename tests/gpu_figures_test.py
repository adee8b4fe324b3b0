"""scripts/gpu_figures.sh: that its commands are ones that the program takes (a rehearsal on the CPU, with the program named
on the command line), and how it ends without a GPU, after failures and after its time, with a program that only pretends."""

import os
import pathlib
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "scripts" / "gpu_figures.sh"
STAGES = ["tests", "op", "train", "generate", "serve", "sanitize", "torch"]


def figures(*arguments, **environment):
    done = subprocess.run([SCRIPT, *map(str, arguments)], capture_output=True, text=True, timeout=500,
                          env={**os.environ, **environment})
    return done.returncode, done.stdout + done.stderr


def expect(condition, what):
    if not condition:
        raise SystemExit(f"gpu_figures_test.py: {what}")


def pretender(folder, body):
    """A folder with a program qdelta that does this."""
    folder.mkdir()
    program = folder / "qdelta"
    program.write_text("#!/bin/bash\n" + body)
    program.chmod(0o755)
    return folder


def test_arguments():
    code, text = figures("--help")
    expect(code == 0 and all(f"  {stage} " in text for stage in STAGES), text)
    for wrong in (["--what"], ["speed"], [""], ["--limit"], ["--limit", "2m"], ["--device", "tpu"], ["--bin", "/no"]):
        code, text = figures(*wrong)
        expect(code == 2 and text.startswith("gpu_figures.sh: ") and "see --help" in text, (wrong, code, text))
    code, text = figures("--dry-run", "--bin", "/nowhere")
    expect(code == 0 and "--recompute some" in text and "1048576" in text and "racecheck" in text, text)


def test_endings(scratch):
    out = scratch / "out"
    nowhere = pretender(scratch / "nowhere", 'if [[ $1 == bench ]]; then echo "no GPU here" >&2; exit 1; fi\n')
    code, text = figures("--bin", nowhere, "--out", out)
    expect(code == 77 and text.count("\n  skipped: no GPU here") == len(STAGES), (code, text))

    # Programs stand in for a GPU: the second shape fails, the others print a table.
    some = pretender(scratch / "some", '[[ $1 == bench ]] || exit 0\ncase "$*" in *4096*) echo bad shape; exit 3 ;; esac\n'
                     'echo "op heads"; echo "forward 6x128x256 268 us"; echo "a remark"\n')
    code, text = figures("--bin", some, "--out", out, "op", "tests", "torch", "--python", "/nowhere/python")
    expect(code == 1 and "op        FAILED, 2 of its commands" in text, (code, text))
    expect("skipped: there is neither ops_tests nor cuda_tests" in text, text)
    expect("skipped: /nowhere/python has no PyTorch" in text, text)
    stage, summary = (out / "op.txt").read_text(), (out / "summary.txt").read_text()
    good = figures("--dry-run", "op")[1].count(" bench op ") - 2
    expect("bad shape\nexit status 3" in stage and good > 8 and stage.count("a remark") == good, stage)
    expect(summary.count("forward 6x128x256 268 us") == good and "a remark" not in summary, summary)

    tests = pretender(scratch / "tests", "exit 0\n")
    for name, last in (("ops_tests", "[  PASSED  ] 7 tests."), ("cuda_tests", "[  PASSED  ] 9 tests.")):
        (tests / name).write_text(f'#!/bin/bash\n[[ $QDELTA_QUICK && -d $QDELTA_GOLDEN_DIR ]] && echo "{last}"\n')
        (tests / name).chmod(0o755)
    code, text = figures("--bin", tests, "--out", out, "tests")
    summary = (out / "summary.txt").read_text()
    expect(code == 0 and "tests     ok" in text and "7 tests" in summary and "9 tests" in summary, (code, text, summary))


def test_commands(scratch, program):
    """Each command that the program gets is one that it takes."""
    code, text = figures("--device", "cpu", "--bin", program.parent, "--out", scratch / "cpu", "--json", "op", "train",
                         "generate", "serve", "sanitize")
    summary = (scratch / "cpu" / "summary.txt").read_text()
    expect(code == 0 and text.count(" ok, ") == 4, (text, summary))
    expect("skipped: compute-sanitizer is for a GPU" in text, text)
    for wanted in ("\nbackward ", "tokens/s", "\n  clients ", "\n  prompt "):
        expect(wanted in summary, (wanted, summary))
    expect(len(list((scratch / "cpu" / "json").iterdir())) == 11, "files of results")


with tempfile.TemporaryDirectory() as folder:
    test_arguments()
    test_endings(pathlib.Path(folder))
    if len(sys.argv) > 1:
        test_commands(pathlib.Path(folder), pathlib.Path(sys.argv[1]).resolve())
