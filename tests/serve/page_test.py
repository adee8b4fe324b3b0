#!/usr/bin/env python3
"""The page at / in a browser without a window (Debian's chromium): it generates, streams and shows what the API gives,
and keeps, forks and deletes states.

    page_test.py QDELTA [SCREENSHOT.png]
"""

import html
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
from soak import make_model, start  # noqa: E402  (beside the other scripts)


def browse(folder, url, *extra):
    command = [shutil.which("chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
               f"--user-data-dir={folder}/profile", "--window-size=1000,700", "--virtual-time-budget=20000", *extra, url]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout


# Somebody at the page: a state is kept at the end of an answer, forked, gone on from, and the first one deleted.
CLICKS = """<script>
(async () => {
  const until = async done => { while (!done()) await new Promise(resolve => setTimeout(resolve, 20)); };
  const click = async (button, key) => {
    delete document.body.dataset[key];
    $(button).click();
    await until(() => document.body.dataset[key] === "done");
  };
  await until(() => !$("states").hidden);
  Object.entries({prompt: "The quick", max_tokens: 8, temperature: 0, save_state: "first"})
    .forEach(([id, value]) => { $(id).value = value; });
  await click("go", "state");
  $("save_state").value = "second";
  await click("fork", "states");
  const forked = $("state").value;
  $("save_state").value = "";
  await click("go", "state");
  $("state").value = "first";
  await click("forget", "states");
  $("save_state").value = "no/name";
  await click("keep", "states");
  document.body.dataset.clicked = forked;
})();
</script>"""


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body and json.dumps(body))
    data = connection.getresponse().read()
    connection.close()
    return data


def text_of(page):
    out = re.search(r'<div id="out"[^>]*>(.*?)</div>', page, re.S).group(1)
    clean = re.compile(r"[^ -~]")  # what a model of random weights makes of control characters is the browser's affair
    return clean.sub("", html.unescape(re.sub(r"<[^>]*>", "", out))), out, clean


def check_states(folder, port):
    """The page of the server with somebody's clicks added, as a file: its requests go to the server all the same."""
    page = ask(port, "GET", "/").decode().replace('<meta charset="utf-8">', f'<base href="http://127.0.0.1:{port}/">', 1)
    path = os.path.join(folder, "clicks.html")
    with open(path, "w", encoding="utf-8") as file:
        file.write("<!doctype html><meta charset=utf-8>" + page.replace("</html>", CLICKS + "</html>"))
    seen = browse(folder, "file://" + path, "--dump-dom")
    assert 'data-clicked="second"' in seen, seen[-3000:]
    assert "the name of a state" in seen
    states = json.loads(ask(port, "GET", "/v1/states"))["data"]
    assert [state["name"] for state in states] == ["second"], states
    expected = json.loads(ask(port, "POST", "/v1/completions", {"prompt": "The quick", "max_tokens": 8, "temperature": 0}))
    more = json.loads(ask(port, "POST", "/v1/completions", {"state": "second", "max_tokens": 8, "temperature": 0}))
    shown, _, clean = text_of(seen)
    whole = "The quick" + expected["choices"][0]["text"] + more["choices"][0]["text"]
    assert shown == clean.sub("", whole), (shown, whole)


def main():
    if not shutil.which("chromium"):
        print("skipped: there is no chromium")
        return SKIPPED
    qdelta = sys.argv[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server, port = start(qdelta, make_model(qdelta, folder),
                             ["--threads", "1", "--states", f"{folder}/states", "--cors", "*"])
        try:
            answer = ask(port, "POST", "/v1/completions",
                         {"prompt": "The quick", "max_tokens": 24, "temperature": 0.8, "seed": 3})
            expected = "The quick" + json.loads(answer)["choices"][0]["text"]
            url = f"http://127.0.0.1:{port}/?prompt=The%20quick&tokens=24&seed=3&run=1"
            page = browse(folder, url, "--dump-dom")
            assert 'data-state="done"' in page, page[-3000:]
            text, out, clean = text_of(page)
            assert text == clean.sub("", expected), (text, expected)
            assert out.count('class="token"') >= 12 and "data-tip=" in out and "background" in out, out
            assert "tokens/s" in page and "error" not in out
            check_states(folder, port)
            if len(sys.argv) > 2:
                browse(folder, url, f"--screenshot={sys.argv[2]}")
        finally:
            server.terminate()
            server.wait(60)
    print("the page shows what the API gives")
    return 0


if __name__ == "__main__":
    sys.exit(main())
