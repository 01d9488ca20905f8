"""A headless Chromium, driven over a pipe by the DevTools protocol. Needs the package `chromium` and nothing else."""
import base64
import fcntl
import json
import os
import shutil
import threading

from conftest import patience, until


class Browser:
    """A browser with one tab. `problems`: what the page logged as an error. `addresses`: what the tab asked for."""

    def __init__(self, profile):
        program = shutil.which("chromium")
        assert program, "the package chromium is missing: etc/install_deps.sh browser"
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (theirs_in, theirs_out)]  # 3 and 4 stay free for the child
        argv = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
                "--disable-background-networking", "--disable-component-update", "--disable-sync", f"--user-data-dir={profile}",
                "--remote-debugging-pipe"]
        quiet = os.open(os.devnull, os.O_RDWR)
        self.pid = os.posix_spawn(program, argv, dict(os.environ, HOME=str(profile)), file_actions=[
            (os.POSIX_SPAWN_DUP2, ends[0], 3), (os.POSIX_SPAWN_DUP2, ends[1], 4),
            (os.POSIX_SPAWN_DUP2, quiet, 1), (os.POSIX_SPAWN_DUP2, quiet, 2)])
        for fd in (theirs_in, theirs_out, quiet, *ends):
            os.close(fd)
        self.out = ours_out
        self.answers, self.problems, self.addresses = {}, [], []
        self.number, self.session = 0, None
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self._read, args=(os.fdopen(ours_in, "rb"),), daemon=True)
        self.reader.start()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _read(self, pipe):
        rest = b""
        while data := pipe.read1(1 << 20):
            *messages, rest = (rest + data).split(b"\0")
            for message in map(json.loads, messages):
                self._note(message.get("method"), message.get("params", {}))
                with self.changed:
                    if "id" in message:
                        self.answers[message["id"]] = message
                    self.changed.notify_all()

    def _note(self, method, params):
        if method == "Network.requestWillBeSent":
            self.addresses.append(params["request"]["url"])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:500])

    def call(self, method, **params):
        with self.changed:
            self.number += 1
            number = self.number
            message = {"id": number, "method": method, "params": params, **({"sessionId": self.session} if self.session else {})}
            os.write(self.out, json.dumps(message).encode() + b"\0")
            assert self.changed.wait_for(lambda: number in self.answers, patience(30)), f"{method}: no answer"
            answer = self.answers.pop(number)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def run(self, script):
        """Returns the value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, (script, answer["exceptionDetails"])
        return answer["result"].get("value")

    def text(self, selector):
        """Returns the visible text of the last element, or None."""
        return self.run(f"(() => {{ const all = [...document.querySelectorAll({json.dumps(selector)})].filter(e => e.offsetParent !== null);"
                        " return all.length ? all[all.length - 1].innerText : null; })()")

    def wait(self, script, seconds=20):
        return until(lambda: self.run(script), seconds, lambda: f"{script}; the page has: {self.run('document.body.innerText')}", 0.05)

    def open(self, url, width=1280, height=800, dark=False, phone=False):
        self.problems.clear()
        self.addresses.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key):
        code = {"Enter": 13, "Escape": 27, "Tab": 9}[key]
        extra = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, **extra)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def shot(self, path, whole=False):
        """Writes a picture of the window, or of the whole page."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]))

    def close(self):
        self.session = None
        self.call("Browser.close")
        os.waitpid(self.pid, 0)
        os.close(self.out)
