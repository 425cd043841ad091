"""The output of workers: where their streams go, files, filters, prefixes, whole lines. Nothing is
lost and no line torn."""

import os

from support import PRINT_ENV, LoggedTest, main, parse_env, with_variables


class Streams(LoggedTest):
    def say_lines(self, *args, **options):
        """Returns the job's stdout and stderr as lines, in order of ranks."""
        out, err = self.say(*args, **options)
        return sorted(out.splitlines()), sorted(err.splitlines())

    def test_case_36_the_console_stays_empty(self):
        self.assertEqual(self.say("--nproc-per-node=2", "-r", "3", "--rdzv-id=x"), ("", ""))
        self.assertRegex(self.attempt().parent.name, r"^x_\w{6,8}$")
        self.assertEqual(self.files(), {f"{rank}/std{end}.log": f"{end} {rank}\n"
                                        for rank in "01" for end in ("out", "err")})

    def test_case_37_tee(self):
        self.assertEqual(self.say("-t", "3", "--role=trn"), ("[trn0]:out 0\n", "[trn0]:err 0\n"))
        self.assertEqual(self.worker_file(0, "stdout.log"), "out 0\n")
        self.assertEqual(self.worker_file(0, "stderr.log"), "err 0\n")

    def test_case_37_stdout_on_stdout_and_stderr_on_stderr(self):
        self.assertEqual(self.say("-t", "3"), ("[default0]:out 0\n", "[default0]:err 0\n"))

    def test_case_38_the_other_streams_stay_on_the_console(self):
        self.assertEqual(self.say("--nproc-per-node=2", "-r", "0:1,1:2"), ("out 1\n", "err 0\n"))
        self.assertEqual(self.files(), {"0/stdout.log": "out 0\n", "1/stderr.log": "err 1\n"})

    def test_case_38_ranks_of_two_digits(self):
        out, _ = self.say("--nproc-per-node=11", "-t", "10:3", "-r", "1")
        self.assertEqual(out, "[default10]:out 10\n")

    def test_case_39_ranks_kept_from_the_console(self):
        out, err = self.say_lines("--nproc-per-node=3", "-t", "1", "--local-ranks-filter=0,2")
        self.assertEqual(out, ["[default0]:out 0", "[default2]:out 2"])
        self.assertEqual(err, ["err 0", "err 2"])
        for rank in range(3):
            self.assertEqual(self.worker_file(rank, "stdout.log"), f"out {rank}\n")
        self.assertEqual(self.worker_file(1, "stderr.log"), "err 1\n")  # not lost silently

    def test_case_40_filtered_files(self):
        out, _ = self.say_lines("--nproc-per-node=3", "-t", "3", "--local-ranks-filter=0,1", "--duplicate-stdout-filters=apple,plum",
                                text="#!/bin/sh\necho an apple $RANK\necho a pear\necho apple >&2\n")
        self.assertEqual(len(out), 4)
        filtered = (self.attempt() / "filtered_stdout.log").read_text().splitlines()
        self.assertEqual(sorted(filtered), ["[default0]:an apple 0", "[default1]:an apple 1"])
        self.assertFalse((self.attempt() / "filtered_stderr.log").exists())

    def test_case_40_redirected_streams_are_not_filtered(self):
        self.say("-r", "3", "--duplicate-stderr-filters=err")
        self.assertEqual((self.attempt() / "filtered_stderr.log").read_text(), "")

    def test_case_41_prefix_template(self):
        line = "#!/bin/sh\necho line\n"
        host = os.uname().nodename.split(".")[0]
        out, _ = self.say("-t", "1", "--log-line-prefix-template=<${rank}|${hostname}> ", text=line)
        self.assertEqual(out, f"<0|{host}> line\n")
        env = with_variables(TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="$role_name$local_rank $restart ${other}:")
        out, _ = self.say("-t", "1", "--role=r", text=line, env=env)
        self.assertEqual(out, "r0 0 ${other}:line\n")

    def test_case_42_no_line_is_lost_or_torn(self):
        out, _ = self.say("--nproc-per-node=2", "-t", "1", text="#!/bin/sh\nprintf abc\nprintf 'def\\n'\nseq 100000\nprintf end\n")
        expected = ["abcdef", *map(str, range(1, 100001)), "end"]
        lines = out.splitlines()
        self.assertEqual(len(lines), 2 * len(expected))
        for rank in 0, 1:
            prefix = f"[default{rank}]:"
            self.assertEqual([line.removeprefix(prefix) for line in lines if line.startswith(prefix)], expected)

    def test_case_42_a_line_written_in_pieces(self):
        # The pause of 0.5 s is the case itself: torchrun puts its prefix into the middle.
        out, _ = self.say("-t", "1", text="#!/bin/sh\nprintf abc\nsleep 0.5\nprintf 'def\\n'\n")
        self.assertEqual(out, "[default0]:abcdef\n")

    def test_case_43_dev_null(self):
        script = self.script(PRINT_ENV + "echo err >&2\n")
        for flags in ["-r", "3"], ["-t", "3"], []:
            code, out, err = self.run_job("--log-dir=/dev/null", *flags, script, env=with_variables())
            self.assertEqual(parse_env(out)["TORCHELASTIC_ERROR_FILE"], "")
            self.assertEqual((code, err), (0, "err\n"))

    def test_no_temporary_folder_is_left(self):
        temporary = self.folder / "tmp"
        temporary.mkdir()
        env = with_variables(TMPDIR=str(temporary))
        for args in ["/bin/true"], ["/bin/false"], ["--max-restarts=1", "/bin/false"]:
            self.run_job(*args, env=env)
            self.assertEqual(os.listdir(temporary), [], args)

    def test_each_attempt_has_its_files(self):
        out, _ = self.say("-t", "1", "--max-restarts=1", "--log-line-prefix-template=${restart}:",
                          text="#!/bin/sh\necho try $TORCHELASTIC_RESTART_COUNT\nexit $((1 - TORCHELASTIC_RESTART_COUNT))\n")
        self.assertEqual(out, "0:try 0\n1:try 1\n")
        for attempt in 0, 1:
            self.assertEqual(self.worker_file(0, "stdout.log", attempt), f"try {attempt}\n")

    def test_latest_leads_to_the_newest_job(self):
        self.say("-r", "1", "--rdzv-id=first")
        self.say("-r", "1", "--rdzv-id=second")
        self.assertRegex(os.readlink(self.logs / "latest"), "^second_")
        newest = self.logs / "latest" / "attempt_0" / "0" / "stdout.log"
        self.assertEqual(newest.read_text(), "out 0\n")


if __name__ == "__main__":
    main()
