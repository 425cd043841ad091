#!/usr/bin/env python3
"""ddprun report on the folders of real jobs. One has lost a worker, one runs, one was killed, and
some folders are of no job."""

import html.parser
import json
import os
import subprocess
import unittest.mock

from support import DDPRUN, WAITING, LoggedTest, main

# Counts its steps as an optimizer's would be (proto/worker_page.h), with a stopwatch of its own.
WORKER = """
import mmap, os, signal, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
offset, _, _, path = os.environ["DDPRUN_PAGE"].split(":", 3)
with open(path, "r+b") as page:
    words = memoryview(mmap.mmap(page.fileno(), 0))[int(offset):int(offset) + 64].cast("Q")
begin = time.monotonic_ns()
for number in range(1, 41):
    while time.monotonic_ns() < begin + number * 20_000_000:
        time.sleep(0.001)
    words[1] = time.monotonic_ns()
    words[2] = words[2] or words[1]
    words[0] = number
with open(f"{sys.argv[1]}/{rank}.{attempt}", "w") as file:
    file.write(str(time.monotonic_ns() - begin))
while rank == 1 and not os.path.exists(f"{sys.argv[1]}/0.{attempt}"):
    time.sleep(0.001)
if attempt == 0 and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
while attempt == 0:
    signal.pause()
"""


class Page(html.parser.HTMLParser):
    """Tags that are closed in their order, and the attributes that could load something."""
    VOID = {"meta", "rect"}

    def __init__(self):
        super().__init__()
        self.open, self.loads, self.tags = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.loads += [name for name, _ in attrs if name in ("src", "href", "action") or name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag


class Report(LoggedTest):
    def setUp(self):
        super().setUp()
        self.enterContext(unittest.mock.patch.dict(os.environ, DDPRUN_HISTORY="1"))

    def report(self, *words, code=0):
        done = subprocess.run([DDPRUN, "report", *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr if code else done.stdout

    def test_a_job_that_lost_a_worker(self):
        code, _, err = self.run_job("--nproc-per-node=2", "--max-restarts=1", "--log-dir", self.logs, "--rdzv-id=<b>run", self.script(WORKER, "w.py"),
                                    self.folder)
        self.assertEqual(code, 0, err)
        told = json.loads(self.report("--json", self.logs, "--html", self.folder / "run.html"))
        self.assertEqual((told["job"], told["steps"], told["succeeded"]), ("<b>run", 80, True))
        self.assertEqual([one["broke"] and one["broke"]["kind"] for one in told["rounds"]], ["worker_failed", None])
        self.assertEqual((told["rounds"][0]["broke"]["rank"], told["nodes"][0]["blamed"]), (1, 1))
        # Both attempts, by the stopwatch of rank 0. The ranks have done as many steps.
        watch = sum(int((self.folder / f"0.{attempt}").read_text()) for attempt in range(2)) / 1e9
        self.assertAlmostEqual(told["steps_s"] / watch, 1, delta=0.1)
        self.assertAlmostEqual(sum(one["seconds"] for one in told["time"]), told["wall_s"], delta=0.01)
        page = Page()
        page.feed((self.folder / "run.html").read_text())
        self.assertEqual((page.open, page.loads), ([], []))
        self.assertFalse(page.tags & {"script", "link", "img", "b", "iframe"}, page.tags)
        text = self.report(self.logs / os.readlink(self.logs / "latest"))
        self.assertIn("<b>run: 1 node, 2 rounds, ", text)
        self.assertIn("rank 1 on ", text)

    def test_a_job_that_runs_and_one_that_was_killed(self):
        fifo = self.fifo("ready")
        job = self.start("--nproc-per-node=1", "--log-dir", self.logs, self.script(WAITING.replace("{fifo}", str(fifo))))
        self.read_lines(fifo, 1)
        self.assertIn("no end is written: it runs still, or was killed", self.report(self.logs))
        job.kill_whole()
        self.assertFalse(json.loads(self.report(self.logs, "--json"))["has_end"])

    def test_a_job_that_failed_tells_the_words_of_its_worker(self):
        text = """
import json, os, sys
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    json.dump({"message": {"message": "ValueError: no such layer", "extraInfo": {"py_callstack": "t", "timestamp": "1"}}}, file)
sys.exit(3)
"""
        code, _, err = self.run_job("--nproc-per-node=1", "--log-dir", self.logs, self.script(text, "f.py"))
        self.assertEqual(code, 1, err)
        told = self.report(self.logs)
        self.assertRegex(told, r"^none: 1 node, 1 round, .*: rank 0 on .*ValueError: no such layer\n")

    def test_what_is_wrong_is_named(self):
        usage = "expected `report [--json] [--html FILE] LOGDIR…`"
        self.assertIn(f"report: {usage}", self.report(code=2))
        self.assertIn(f"report --go: {usage}", self.report("--go", code=2))
        self.assertIn("report gone: expected a log folder: No such file or directory", self.report("gone", code=1))
        (self.folder / "empty").mkdir()
        self.assertIn("report empty: expected a --log-dir, or a job's folder in it", self.report("empty", code=1))


if __name__ == "__main__":
    main()
