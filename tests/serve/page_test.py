#!/usr/bin/env python3
"""The page at / in a browser without a window (Debian's chromium): it generates, streams and shows what the API gives,
keeps, forks and deletes states, and chats.

    page_test.py QDELTA [SCREENSHOT.png]
"""

import base64
import html
import http.client
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
from soak import make_model, start  # noqa: E402  (beside the other scripts)


class Browser:
    """Chromium without a window, spoken to over a pair of pipes (its debugging protocol: JSON with a zero behind it).
    In real time: with a virtual clock (--dump-dom) it may be at its end before the server has answered."""

    def __init__(self, folder):
        commands, self.commands = os.pipe()
        self.replies, replies = os.pipe()

        def as_three_and_four():
            spare = os.dup(replies)  # 3 may be one of these
            os.dup2(commands, 3)
            os.dup2(spare, 4)

        command = [shutil.which("chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   f"--user-data-dir={folder}/profile", "--window-size=1000,700", "--remote-debugging-pipe"]
        self.process = subprocess.Popen(command, preexec_fn=as_three_and_four, close_fds=False,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(replies)
        self.rest, self.count, self.session = b"", 0, {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        self.call("Page.enable")

    def next_message(self):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.replies], [], [], 120)
            more = os.read(self.replies, 1 << 16) if ready else b""
            assert more, "chromium does not answer"
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters, **self.session}
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            message = self.next_message()
            if message.get("id") == self.count:
                assert "error" not in message, message
                return message["result"]

    def go(self, url):
        self.call("Page.navigate", url=url)
        while self.next_message().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, script):
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def page(self):
        return self.evaluate("document.documentElement.outerHTML")

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self):
        os.close(self.commands)
        os.close(self.replies)
        self.process.terminate()
        self.process.wait(60)


UNTIL = """const until = async done => { while (!done()) await new Promise(resolve => setTimeout(resolve, 20)); };"""
# Somebody at the page: a state is kept at the end of an answer, forked, gone on from, and the first one deleted.
CLICKS = UNTIL + """
(async () => {
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
  return forked;
})()"""
# A chat of two turns, a message that is refused before the second of them, and what is seen with the mouse over a token.
CHAT = UNTIL + """
(async () => {
  const say = async text => {
    $("prompt").value = text;
    delete document.body.dataset.state;
    $("go").click();
    await until(() => document.body.dataset.state === "done");
  };
  $("mode").value = "chat";
  $("mode").onchange();
  await say("Hello");
  $("max_tokens").value = 1000000;
  await say("And then?");
  const refused = [messages.length, $("prompt").value, document.querySelectorAll(".error").length].join();
  $("max_tokens").value = 8;
  await say($("prompt").value);
  document.querySelector(".token").dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
  return [refused, messages.map(m => m.role + ":" + (m.role === "user" ? m.content : typeof m.content)).join(),
          $("tip").textContent, messages.some(m => m.content.includes("undefined"))];
})()"""


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


def check_states(browser, port):
    browser.go(f"http://127.0.0.1:{port}/")
    forked = browser.evaluate(CLICKS)
    seen = browser.page()
    assert forked == "second", seen[-3000:]
    assert "the name of a state" in seen
    states = json.loads(ask(port, "GET", "/v1/states"))["data"]
    assert [state["name"] for state in states] == ["second"], states
    expected = json.loads(ask(port, "POST", "/v1/completions", {"prompt": "The quick", "max_tokens": 8, "temperature": 0}))
    more = json.loads(ask(port, "POST", "/v1/completions", {"state": "second", "max_tokens": 8, "temperature": 0}))
    shown, _, clean = text_of(seen)
    whole = "The quick" + expected["choices"][0]["text"] + more["choices"][0]["text"]
    assert shown == clean.sub("", whole), (shown, whole)


def check_chat(browser, port):
    browser.go(f"http://127.0.0.1:{port}/?tokens=8&seed=3")
    refused, said, tip, has_undefined = browser.evaluate(CHAT)
    assert refused == "2,And then?,1", refused  # it is not part of the conversation, and can be sent again
    assert said == "user:Hello,assistant:string,user:And then?,assistant:string", said
    assert not has_undefined
    assert tip.count(" %") >= 5, tip  # the token and its alternatives


def main():
    if not shutil.which("chromium"):
        print("skipped: there is no chromium (Debian: apt install chromium)")
        return SKIPPED
    qdelta = sys.argv[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        model = make_model(qdelta, folder)
        with open(os.path.join(model, "chat_template.jinja"), "w", encoding="utf-8") as file:
            file.write("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]")
        server, port = start(qdelta, model, ["--threads", "1", "--states", f"{folder}/states"])
        browser = Browser(folder)
        try:
            answer = ask(port, "POST", "/v1/completions",
                         {"prompt": "The quick", "max_tokens": 24, "temperature": 0.8, "seed": 3})
            expected = "The quick" + json.loads(answer)["choices"][0]["text"]
            url = f"http://127.0.0.1:{port}/?prompt=The%20quick&tokens=24&seed=3&run=1"
            browser.go(url)
            browser.evaluate(UNTIL + 'until(() => document.body.dataset.state === "done")')
            page = browser.page()
            text, out, clean = text_of(page)
            assert text == clean.sub("", expected), (text, expected)
            assert out.count('class="token"') >= 12 and "data-tip=" in out and "background" in out, out
            assert "tokens/s" in page and "error" not in out
            if len(sys.argv) > 2:
                browser.screenshot(sys.argv[2])
            check_states(browser, port)
            check_chat(browser, port)
        finally:
            browser.close()
            server.terminate()
            server.wait(60)
    print("the page shows what the API gives")
    return 0


if __name__ == "__main__":
    sys.exit(main())
