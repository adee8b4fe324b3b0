#!/usr/bin/env python3
"""Chat templates through our interpreter and through Python's jinja2, set up as transformers does: the same text.

    tests/template/compare_jinja2.py TEMPLATE_RENDER [FOLDER...]

Renders templates of our own and random expressions over many conversations. Folders hold templates of others
(*.jinja), to be compared in the same way. Where jinja2 refuses, we must refuse; where it does not, we must give the same
text, or say that we do not support something, which is only allowed for random expressions and others' templates. Exits
with 77, which ctest takes for skipped, where this Python has no jinja2.
"""

import datetime
import importlib.util
import json
import pathlib
import random
import subprocess
import sys
import warnings

if importlib.util.find_spec("jinja2") is None:
    print("no jinja2 here")
    sys.exit(77)

import jinja2
import jinja2.ext
import jinja2.sandbox

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cases import CONVERSATIONS, TEMPLATES, random_template  # noqa: E402

NOW = 1721995200  # 26 Jul 2024
RANDOM = 5000


class Generation(jinja2.ext.Extension):
    """The tag that transformers adds."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(line)

    def _support(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.fromtimestamp(NOW).strftime(form)
    return env


class Ours:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def render(self, template, variables):
        request = {"template": template, "variables": variables, "now": NOW}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the renderer has died of {template!r} with {variables!r}")
        return json.loads(line)


class Comparison:
    def __init__(self, program):
        self.ours = Ours(program)
        self.env = environment()
        self.same = self.refused = self.unsupported = 0
        self.failures = []
        self.lacking = set()
        self.compiled = None, None

    def theirs(self, template, variables):
        try:
            if self.compiled[0] != template:
                self.compiled = template, self.env.from_string(template)
            return self.compiled[1].render(**variables)
        except (Exception, RecursionError) as error:  # noqa: B014: whatever Python has to say
            return error

    def compare(self, template, variables, may_lack):
        expected = self.theirs(template, variables)
        got = self.ours.render(template, variables)
        if got.get("text") == expected:
            self.same += 1
        elif isinstance(expected, Exception) and "error" in got:
            self.refused += 1
        elif may_lack and got.get("unsupported"):
            self.unsupported += 1
            self.lacking.add(got["error"])
        else:
            self.failures.append((template, variables, expected, got))

    def report(self, what):
        print(f"{what}: {self.same} the same, {self.refused} refused by both, {self.unsupported} not supported", end="")
        print(f", {len(self.failures)} different")
        for template, variables, expected, got in self.failures[:10]:
            print(f"--- {template!r}\n  with  {json.dumps(variables)[:300]}\n  jinja {expected!r}\n  ours  {got!r}")
        for error in sorted(self.lacking):
            print(f"  {error}")
        self.lacking = set()
        failed = bool(self.failures)
        self.same = self.refused = self.unsupported = 0
        self.failures = []
        return failed


def main():
    warnings.simplefilter("ignore")  # Python's, about what random templates are compiled to
    comparison = Comparison(sys.argv[1])
    failed = False
    for template in TEMPLATES:
        for variables in CONVERSATIONS:
            comparison.compare(template, variables, may_lack=False)
    failed |= comparison.report(f"{len(TEMPLATES)} templates x {len(CONVERSATIONS)} conversations")

    rng = random.Random(20260101)
    for _ in range(RANDOM):
        comparison.compare(random_template(rng), rng.choice(CONVERSATIONS), may_lack=True)
    failed |= comparison.report("random templates")

    for folder in sys.argv[2:]:
        files = sorted(pathlib.Path(folder).glob("*.jinja"))
        for path in files:
            template = path.read_text(encoding="utf-8")
            for variables in CONVERSATIONS:
                comparison.compare(template, variables, may_lack=True)
        failed |= comparison.report(f"{len(files)} templates of {folder}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
