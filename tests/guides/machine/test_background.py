"""Ctrl-C ends the wait for compiled programs and for the compiler, and the process with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from sidebayes.guides.engines.machine.background import (
    NoThreadsError,
    Workers,
    in_threads,
    interruptible,
)


@pytest.fixture(autouse=True)
def _listening():
    """Shells start what runs in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_once(begun: threading.Event) -> None:
    """Press Ctrl-C when the work has begun."""

    def press():
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


def test_the_wait_ends_before_the_work_and_the_rest_never_begins():
    begun, go, done = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        assert go.wait(30)
        done.append(threading.current_thread())

    interrupt_once(begun)
    with pytest.raises(KeyboardInterrupt):
        in_threads([work] * 5, 1)
    assert done == []
    go.set()
    while not done:
        time.sleep(0.001)
    done[0].join(30)  # ends, having dropped the other four
    assert len(done) == 1


def test_work_is_done_elsewhere_for_the_main_thread_only():
    main = threading.main_thread()
    assert interruptible(threading.current_thread) is not main
    assert in_threads([lambda: interruptible(threading.current_thread)] * 2, 1)[0] is not main
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 / 0)


def test_where_no_thread_can_be_started_work_is_done_here(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(NoThreadsError):
        Workers(1).submit(lambda: None)
    assert interruptible(threading.current_thread) is threading.main_thread()


LEAVES = """
import os, signal, threading, time
from sidebayes.guides.engines.machine.background import interruptible

signal.signal(signal.SIGINT, signal.default_int_handler)

def work():
    threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
    time.sleep({seconds})
    print("done", flush=True)

{what}
"""
CAUGHT = """
try:
    interruptible(work)
except KeyboardInterrupt:
    pass
"""


COMMAND = """
from sidebayes import cli

cli.app.command("work")(lambda: interruptible(work))
cli.app(["work"])
"""


def test_the_command_line_ends_without_what_nobody_waits_for():
    code = LEAVES.format(what=COMMAND, seconds=600)
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert (found.returncode, found.stdout) == (130, "")


@pytest.mark.parametrize(("what", "ends"), [("interruptible(work)", False), (CAUGHT, True)])
def test_python_ends_without_what_nobody_waits_for(what, ends):
    """After Ctrl-C that nobody caught it ends by the signal; else it waits for what has begun."""
    code = LEAVES.format(what=what, seconds=1 if ends else 600)
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert found.returncode == (0 if ends else -signal.SIGINT), found.stderr
    assert found.stdout.split() == ["done"] * ends
    assert ("KeyboardInterrupt" in found.stderr) != ends
