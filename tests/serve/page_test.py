#!/usr/bin/env python3
"""The page at / in a browser without a window (Debian's chromium): it generates, streams and shows what the API gives.

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


def main():
    if not shutil.which("chromium"):
        print("skipped: there is no chromium")
        return SKIPPED
    qdelta = sys.argv[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server, port = start(qdelta, make_model(qdelta, folder), ["--threads", "1"])
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("POST", "/v1/completions", json.dumps(
                {"prompt": "The quick", "max_tokens": 24, "temperature": 0.8, "seed": 3}))
            expected = "The quick" + json.load(connection.getresponse())["choices"][0]["text"]
            url = f"http://127.0.0.1:{port}/?prompt=The%20quick&tokens=24&seed=3&run=1"
            page = browse(folder, url, "--dump-dom")
            assert 'data-state="done"' in page, page[-3000:]
            out = re.search(r'<div id="out"[^>]*>(.*?)</div>', page, re.S).group(1)
            text = html.unescape(re.sub(r"<[^>]*>", "", out))
            clean = re.compile(r"[^ -~]")  # what a model of random weights makes of control characters is the browser's affair
            assert clean.sub("", text) == clean.sub("", expected), (text, expected)
            assert out.count('class="token"') >= 12 and "data-tip=" in out and "background" in out, out
            assert "tokens/s" in page and "error" not in out
            if len(sys.argv) > 2:
                browse(folder, url, f"--screenshot={sys.argv[2]}")
        finally:
            server.terminate()
            server.wait(60)
    print("the page shows what the API gives")
    return 0


if __name__ == "__main__":
    sys.exit(main())
