"""A page in headless Chromium, driven through the pipe of its DevTools protocol.

The pipe needs no port and no library: messages are JSON with a zero byte at the end,
to descriptor 3 and from descriptor 4 of the browser. Every wait has an end.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Page", "chromium", "need_chromium"]

PATIENCE_S = 20
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--window-size=1400,800",
    "--remote-debugging-pipe",
)
STARTER = "import os, sys; os.dup2({}, 3); os.dup2({}, 4); os.execvp(sys.argv[1], sys.argv[1:])"


def need_chromium() -> str:
    """Where it is; without it the test is skipped, but in CI it fails."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        missing = "chromium is not installed: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


class Page:
    """The only page of a browser."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._last = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        """What the browser reported by itself."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for what it returns."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._last:
            self.events.append(answer)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._from, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, path: Path, *, scheme: str = "light", motion: str = "no-preference") -> None:
        """Load a file, and wait until it was drawn."""
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": motion},
        ]
        self.send("Emulation.setEmulatedMedia", features=features)
        self.events.clear()
        self.send("Page.navigate", url=path.as_uri())
        self.wait("document.readyState === 'complete'")
        self.settle()

    def settle(self) -> None:
        """Wait for two frames: what was planned is drawn."""
        self.run("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")

    def wait(self, condition: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not self.run(condition):
            assert time.monotonic() < until, condition
            time.sleep(0.01)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        told = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def press(self, key: str, *, shift: bool = False, ctrl: bool = False) -> None:
        """One key, down and up."""
        modifiers = 8 * shift + 2 * ctrl
        text = {"text": key} if len(key) == 1 and not ctrl else {}
        if key == "Enter":
            text = {"text": "\r"}
        codes = {"Tab": 9, "Enter": 13, "Escape": 27}
        about = {
            "key": key,
            "code": key,
            "modifiers": modifiers,
            "windowsVirtualKeyCode": codes.get(key, 0),
        }
        self.send("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **about)
        self.settle()

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.settle()

    def picture(self, path: Path) -> None:
        told = self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(told["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings of the page since it was opened."""
        self.run("0")
        return [
            json.dumps(event)
            for event in self.events
            if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")
        ]

    def fetched(self) -> list[str]:
        """Addresses that the page asked for."""
        self.run("0")
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]


def _high(descriptor: int) -> int:
    """The same file under a number that the browser's own 3 and 4 do not meet."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """A browser with its profile in `folder`, ended at last."""
    program = need_chromium()
    their_in, our_out = map(_high, os.pipe())
    our_in, their_out = map(_high, os.pipe())
    starter = STARTER.format(their_in, their_out)
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", starter, program, *OPTIONS, f"--user-data-dir={folder}/profile"],
            pass_fds=(their_in, their_out),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"HOME": str(folder)},
        )
    os.close(their_in)
    os.close(their_out)
    try:
        yield Page(our_out, our_in)
    finally:
        os.close(our_out)
        os.close(our_in)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(5)
