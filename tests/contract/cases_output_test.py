"""Acceptance cases 38 and 42 in full, and what ddprun says on the console: nothing when told so,
events, waiting. Cases 36, 37, 39 to 41 and 43 are in tests/jobs/output_test.py."""

import json
import os
import pty
import select
import signal

from cases_support import DEADLINE, CaseTest, free_port, main, with_variables

SAY = "#!/bin/sh\necho out $RANK\necho err $RANK >&2\n"
STATES = "RENDEZVOUS", "ASSIGN_WORKER_RANKS", "START", "SUCCEEDED"


class CaseOutput(CaseTest):
    def attempt(self):
        (folder,) = (self.folder / "logs").glob("*_*/attempt_0")
        return folder

    def files(self):
        """The log files below the attempt's folder, with their text."""
        return {str(path.relative_to(self.attempt())): path.read_text()
                for path in self.attempt().rglob("*.log")}

    def say(self, *flags, text=SAY):
        code, out, err = self.run_job("--log-dir", self.folder / "logs", *flags, self.script(text),
                                      env=with_variables(OMP_NUM_THREADS="1"))
        self.assertEqual(code, 0, err)
        return out, err

    def test_case_36_the_console_stays_empty(self):
        self.assertEqual(self.say("--nproc-per-node=2", "-r", "3", "--rdzv-id=x"), ("", ""))
        self.assertRegex(self.attempt().parent.name, r"^x_\w{6,8}$")
        self.assertEqual(self.files(), {f"{rank}/std{end}.log": f"{end} {rank}\n"
                                        for rank in "01" for end in ("out", "err")})

    def test_case_37_stdout_on_stdout_and_stderr_on_stderr(self):
        self.assertEqual(self.say("-t", "3"), ("[default0]:out 0\n", "[default0]:err 0\n"))

    def test_case_38_the_other_streams_stay_on_the_console(self):
        self.assertEqual(self.say("--nproc-per-node=2", "-r", "0:1,1:2"), ("out 1\n", "err 0\n"))
        self.assertEqual(self.files(), {"0/stdout.log": "out 0\n", "1/stderr.log": "err 1\n"})

    def test_case_42_a_line_written_in_pieces(self):
        # The pause of 0.5 s is the case itself: torchrun puts its prefix into the middle.
        out, _ = self.say("-t", "1", text="#!/bin/sh\nprintf abc\nsleep 0.5\nprintf 'def\\n'\n")
        self.assertEqual(out, "[default0]:abcdef\n")

    def test_case_42_many_lines_and_an_exit(self):
        out, _ = self.say("--nproc-per-node=2", "-t", "1", text="#!/bin/sh\nexec seq 100000\n")
        for rank in 0, 1:
            prefix = f"[default{rank}]:"
            lines = [line[len(prefix):] for line in out.splitlines() if line.startswith(prefix)]
            self.assertEqual(lines, [str(number) for number in range(1, 100001)])


class CaseOwnWords(CaseTest):
    def test_quiet(self):
        script = self.script("#!/bin/sh\ntest $TORCHELASTIC_RESTART_COUNT = 1\n")
        flags = "--nproc-per-node=2", "--max-restarts=1"
        code, _, err = self.run_job(*flags, script, env=with_variables())
        self.assertEqual(code, 0)
        self.assertRegex(err, r"OMP_NUM_THREADS")
        self.assertRegex(err, r"(?m)^ddprun: .*; restart 1 of 1$")
        code, out, err = self.run_job("--quiet", *flags, script, env=with_variables())
        self.assertEqual((code, out, err), (0, "", ""))

    def test_quiet_keeps_the_report(self):
        code, _, err = self.run_job("--quiet", self.script("#!/bin/sh\nexit 3\n"))
        self.assertEqual(code, 1)
        self.assertRegex(self.cause(err), r"exitcode +: 3 ")

    def test_at_most_five_lines_of_its_own(self):
        code, _, err = self.run_job("--max-restarts=20", self.script(
            "#!/bin/sh\ntest $TORCHELASTIC_RESTART_COUNT = 20\n"))
        self.assertEqual(code, 0)
        self.assertLessEqual(len(err.splitlines()), 5)

    def on_a_terminal(self, *args):
        """The job, with a terminal as its stderr, and the terminal's other end."""
        leader, terminal = pty.openpty()
        self.addCleanup(os.close, leader)
        prefix = ("sh", "-c", f'exec "$@" 2>/proc/{os.getpid()}/fd/{terminal}', "sh")
        job = self.start(*args, prefix=prefix)
        self.addCleanup(os.close, terminal)
        return job, leader

    def read_terminal(self, leader, wanted):
        """What the terminal shows, until `wanted` is part of it."""
        shown = ""
        while wanted not in shown:
            readable, _, _ = select.select([leader], [], [], DEADLINE)
            self.assertTrue(readable, f"{wanted} not in: {shown}")
            shown += os.read(leader, 1000).decode()
        return shown

    def test_a_terminal_is_told_world_and_master(self):
        job, leader = self.on_a_terminal("--nproc-per-node=2", self.worker("#!/bin/sh\nexit 0\n"))
        shown = self.read_terminal(leader, "master 127.0.0.1:")
        self.assertIn("ddprun: 2 workers on 1 node, master 127.0.0.1:", shown)
        self.assertEqual(job.finish()[0], 0)

    def test_a_terminal_sees_whom_the_job_waits_for(self):
        job, leader = self.on_a_terminal("--nnodes=2", "--rdzv-backend=c10d",
                                         f"--rdzv-endpoint=127.0.0.1:{free_port()}", "/bin/true")
        shown = self.read_terminal(leader, "(2 s of 600 s)")
        self.assertIn("ddprun: waiting for the other nodes at 127.0.0.1:", shown)
        job.process.send_signal(signal.SIGTERM)
        job.finish()

    def events(self, *args):
        code, _, err = self.run_job("--event-log-handler=console", "--rdzv-id=job", *args)
        lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
        for line in lines:
            self.assertEqual(line["timestamp"], 0)
            self.assertEqual(line["metadata"]["run_id"], "job")
            state = line["metadata"]["state"]
            self.assertEqual(line["name"], f"torchelastic.worker.status.{state}")
        return code, [(line["source"], line["metadata"]["state"]) for line in lines], lines

    def test_events_of_a_job_that_ends_well(self):
        code, states, lines = self.events("--role=r", "/bin/true")
        self.assertEqual(code, 0)
        self.assertEqual([state for source, state in states if source == "AGENT"], [*STATES])
        (worker,) = [line["metadata"] for line in lines if line["source"] == "WORKER"]
        self.assertEqual([worker[name] for name in ("state", "global_rank", "local_rank", "role")],
                         ["SUCCEEDED", 0, [0], "r"])

    def test_events_of_a_job_that_fails(self):
        script = self.script("#!/bin/sh\ntest $RANK = 1 && exit 7\nexec sleep 1000\n")
        code, states, lines = self.events("--nproc-per-node=2", "--max-restarts=1", script)
        self.assertEqual(code, 1)
        agent = [state for source, state in states if source == "AGENT"]
        self.assertEqual(agent, [*STATES[:3], *STATES[:3], "FAILED"])
        failed = [line["metadata"] for line in lines
                  if line["source"] == "WORKER" and line["metadata"]["global_rank"] == 1]
        self.assertEqual([one["raw_error"] for one in failed], ["exitcode 7"] * 2)
        self.assertEqual([one["agent_restarts"] for one in failed], [0, 1])


if __name__ == "__main__":
    main()
