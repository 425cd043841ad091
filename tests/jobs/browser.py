"""Drives a headless chromium over its pipe (the DevTools protocol), for tests of pages. Only the
standard library."""

import base64
import json
import os
import shutil
import subprocess

PROGRAM = shutil.which("chromium")
DEADLINE = 120  # seconds; a start takes some three
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-proxy-server", "--hide-scrollbars")


class Browser:
    """One browser with one page. Each failure raises. `folder` is for its profile."""

    def __init__(self, folder):
        to_browser, self.to = os.pipe()
        self.of, from_browser = os.pipe()
        # It reads from descriptor 3 and writes to 4.
        shell = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(["bash", "-c", shell, PROGRAM, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={folder}"],
                                        pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.session, self.unread, self.errors, self.loaded = 0, None, b"", [], False
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Log", "Accessibility":
            self.ask(f"{domain}.enable")

    def close(self):
        os.close(self.to)
        self.process.kill()
        self.process.wait(timeout=DEADLINE)
        os.close(self.of)

    def ask(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def read(self):
        """Returns the next message. Notes what the page writes to its console as an error."""
        while b"\0" not in self.unread:
            part = os.read(self.of, 1 << 20)
            if not part:
                raise RuntimeError(f"{PROGRAM} ended")
            self.unread += part
        text, _, self.unread = self.unread.partition(b"\0")
        message = json.loads(text)
        method = message.get("method")
        if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.errors.append(message["params"])
        self.loaded = self.loaded or method == "Page.loadEventFired"
        return message

    def open(self, url):
        self.errors, self.loaded = [], False
        self.ask("Page.navigate", url=url)
        while not self.loaded:
            self.read()

    def items(self):
        """Returns pairs of role and name, as a screen reader is told of the page."""
        nodes = self.ask("Accessibility.getFullAXTree")["nodes"]
        return [(node.get("role", {}).get("value"), node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]

    def save_picture(self, path):
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot")["data"]))
