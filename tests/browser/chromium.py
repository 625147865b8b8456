"""Drives a headless Chromium through its DevTools protocol: just what checking a page needs."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request

import websocket  # pip: websocket-client

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


class Chromium:
    def __init__(self):
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if program is None:
            raise FileNotFoundError("no Chromium")
        self.folder = tempfile.mkdtemp()
        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--hide-scrollbars", "--remote-debugging-port=0",
             "--remote-allow-origins=*", f"--user-data-dir={self.folder}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = self._port()
        pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list"))
        page = next(p for p in pages if p["type"] == "page")
        self.socket = websocket.create_connection(page["webSocketDebuggerUrl"], timeout=120)
        self.number = 0
        self.messages = []
        self.requests = []
        self.errors = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _port(self):
        for _ in range(300):
            try:
                with open(f"{self.folder}/DevToolsActivePort", encoding="ascii") as f:
                    return int(f.readline())
            except (FileNotFoundError, ValueError):
                time.sleep(0.1)
        raise TimeoutError("Chromium does not start")

    def close(self):
        try:
            self.call("Browser.close")
        except Exception:  # It may be gone before it answers.
            pass
        self.socket.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _take(self, message):
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif "willReadFrequently" in json.dumps(params):
            pass  # A hint about the check's own reading of pixels.
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        if method:
            self.messages.append(method)

    def call(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv())
            self._take(message)
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]

    def size(self, width, height, ratio=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=ratio, mobile=False)

    def media(self, scheme="light", kind=""):
        self.call("Emulation.setEmulatedMedia", media=kind, features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, path):
        """Opens a file; seconds until the page says that it is ready and has painted."""
        self.errors.clear()
        self.requests.clear()
        self.messages.clear()
        begin = time.monotonic()
        self.call("Page.navigate", url=f"file://{path}")
        while "Page.loadEventFired" not in self.messages:
            self._take(json.loads(self.socket.recv()))
        self.wait("window.fsviz && window.fsviz.ready")
        self.frame()
        return time.monotonic() - begin

    def eval(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return result["result"].get("value")

    def frame(self):
        """Two frames: what was asked for before is painted after."""
        self.eval("new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))")

    def wait(self, condition, seconds=30):
        until = time.monotonic() + seconds
        while not self.eval(f"!!({condition})"):
            if time.monotonic() > until:
                raise TimeoutError(condition)
            time.sleep(0.02)

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def hover(self, x, y):
        self.mouse("mouseMoved", x, y)
        self.frame()

    def click(self, x, y):
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)
        self.frame()

    def drag(self, x, y, dx, dy=0, steps=8):
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        for i in range(1, steps + 1):
            self.mouse("mouseMoved", x + dx * i / steps, y + dy * i / steps, button="left", buttons=1)
        self.mouse("mouseReleased", x + dx, y + dy, button="left", clickCount=1)
        self.frame()

    def wheel(self, x, y, dy, shift=False):
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=dy, modifiers=8 if shift else 0)
        self.frame()

    CODES = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}

    def key(self, key, shift=False):
        text = "\r" if key == "Enter" else key if len(key) == 1 else None
        code = self.CODES.get(key, ord(key.upper()) if len(key) == 1 and key.isalnum() else 0)
        common = dict(key=key, windowsVirtualKeyCode=code, modifiers=8 if shift else 0)
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)
        self.frame()

    def type(self, text):
        for c in text:
            self.key(c)

    def screenshot(self, path):
        self.frame()
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))

    def pdf(self):
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])
