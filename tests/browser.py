"""A headless browser, driven over a pipe with the DevTools protocol."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--hide-scrollbars", "--remote-debugging-pipe"),
]


class Browser:
    def __init__(self, to: int, back: int):
        self._to, self._back, self._left, self._number = to, back, b"", 0
        self.complaints: list[str] = []
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session: str | None = None
        self._session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable", {})

    def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if getattr(self, "_session", None):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result = answer["result"]
                assert isinstance(result, dict)
                return result
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            part = os.read(self._back, 1 << 16)
            assert part, "the browser has gone"
            self._left += part
        text, _, self._left = self._left.partition(b"\0")
        value = json.loads(text)
        assert isinstance(value, dict)
        return value

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(event["params"]))

    def size(self, width: int, height: int, dark: bool = False, touch: bool = False, paper: bool = False) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch}
        self._call("Emulation.setDeviceMetricsOverride", metrics)
        self._call("Emulation.setTouchEmulationEnabled", {"enabled": touch})
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", {"media": "print" if paper else "", "features": [scheme]})

    def open(self, address: str) -> None:
        self._call("Page.navigate", {"url": address})
        self.wait(f"location.href.startsWith({address!r}) && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        found = self._call("Runtime.evaluate", {"expression": script, "returnByValue": True, "awaitPromise": True})
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = 120) -> Any:
        """Until the script says something true."""
        patience = time.monotonic() + seconds
        while not (found := self.run(script)):
            assert time.monotonic() < patience, (script, self.complaints, self.run("document.body.innerText"))
            time.sleep(0.05)
        return found

    def key(self, key: str) -> None:
        """A real key press. Enter needs its text to press buttons."""
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        codes = {"Enter": 13, "Tab": 9}
        pressed = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0].upper()))}
        self._call("Input.dispatchKeyEvent", {"type": "keyDown", **pressed} | ({"text": text} if text else {}))
        self._call("Input.dispatchKeyEvent", {"type": "keyUp", **pressed})

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """Of the whole page, or of what the window shows."""
        data = self._call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})["data"]
        path.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    there, to = os.pipe()
    back, here = os.pipe()

    def fixed_numbers() -> None:  # the browser reads from 3 and writes to 4
        first, second = os.dup(there), os.dup(here)
        os.dup2(first, 3)
        os.dup2(second, 4)
        os.set_inheritable(3, True)  # where 3 and 4 were free before, nothing was copied, nor made inheritable
        os.set_inheritable(4, True)

    process = subprocess.Popen(
        [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
        preexec_fn=fixed_numbers,
    )
    os.close(there)
    os.close(here)
    try:
        yield Browser(to, back)
    finally:
        process.kill()
        process.wait()
        os.close(to)
        os.close(back)
