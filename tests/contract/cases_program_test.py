"""Acceptance cases 5 to 14: the command line, and what is run. Cases 1 to 4 and 12 are in
tests/jobs/jobs_test.py."""

import pathlib
import unittest

from cases_support import DDPRUN, PRINT_ENV, CaseTest, main, with_variables

# Prints its arguments and whether its output is unbuffered.
SAY_ARGUMENTS = "import sys\nprint(sys.argv[1:], sys.stdout.write_through)\n"
LAUNCH = pathlib.Path(DDPRUN).with_name("ddprun-launch")
UUID4 = r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"


class CaseProgram(CaseTest):
    def test_case_05_number_of_workers_by_variable(self):
        env = with_variables(PET_NPROC_PER_NODE="2")
        found, _ = self.envs(self.script(PRINT_ENV), env=env)
        self.assertEqual([one["RANK"] for one in found], ["0", "1"])
        found, _ = self.envs("--nproc-per-node=1", self.script(PRINT_ENV), env=env)
        self.assertEqual([one["WORLD_SIZE"] for one in found], ["1"])

    def test_case_06_switches_by_variable(self):
        self.script(PRINT_ENV, "E")
        env = with_variables(PET_STANDALONE="1", PET_NO_PYTHON="1")
        found = self.env_of_one("./E", env=env, cwd=self.folder)
        self.assertRegex(found["TORCHELASTIC_RUN_ID"], UUID4)
        found = self.env_of_one("./E", env=env | {"PET_STANDALONE": "0"}, cwd=self.folder)
        self.assertEqual(found["TORCHELASTIC_RUN_ID"], "none")

    def test_case_07_switches_by_word(self):
        found = self.env_of_one(self.script(PRINT_ENV), env=with_variables(PET_STANDALONE="true"))
        self.assertRegex(found["TORCHELASTIC_RUN_ID"], UUID4)

    def test_case_08_options_end_at_the_script(self):
        script = self.script(PRINT_ENV)
        self.assertEqual(self.env_of_one(script, "--nnodes", "2", "-h")["ARGS"],
                         ["--nnodes", "2", "-h"])
        self.assertEqual(self.env_of_one("--", script, "--", "a")["ARGS"], ["--", "a"])

    def refused(self, code, wanted, *args):
        got, out, err = self.run_job(*args, env=with_variables())
        self.assertEqual((got, out), (code, ""), err)
        self.assertEqual(len(err.splitlines()), 1, err)
        self.assertIn(wanted, err)

    def test_case_09_usage_errors(self):
        script = self.script(PRINT_ENV)
        self.refused(2, "usage: ddprun")
        self.refused(2, "--nope", "--nope", "x")
        self.refused(2, "--max-restarts=x", "--max-restarts=x", script)
        self.refused(2, "--start-method=q", "--start-method=q", script)

    def test_case_10_bad_values_are_named(self):
        script = self.script(PRINT_ENV)
        for flag in ("--nnodes=2:1", "--nnodes=0", "--nnodes=1:2:3", "--max-restarts=-1",
                     "--nproc-per-node=bogus", "--monitor-interval=0", "--tee=4",
                     "--rdzv-conf=foo", "--rdzv-backend=foo"):
            with self.subTest(flag):
                self.refused(1, f"ddprun: {flag}: ", flag, script)
        self.refused(1, "--no-python", "-m", "--no-python", script)

    def test_case_11_python_scripts(self):
        script = self.script(SAY_ARGUMENTS, "t.py")
        env = with_variables()
        code, out, _ = self.run_job(script, "a", "b", env=env)
        self.assertEqual((code, out), (0, "['a', 'b'] True\n"))
        code, out, _ = self.run_job("-m", "t", "a", env=env, cwd=self.folder)
        self.assertEqual((code, out), (0, "['a'] True\n"))

    def test_case_11_python_exec_is_the_interpreter(self):
        env = with_variables(PYTHON_EXEC=self.script('#!/bin/sh\necho "mine $*"\n', "mypython"))
        script = self.script(SAY_ARGUMENTS, "t.py")
        self.assertEqual(self.run_job(script, "a", env=env)[1], f"mine -u {script} a\n")
        self.assertEqual(self.run_job("-m", "mod", "a", env=env)[1], "mine -u -m mod a\n")

    def test_case_13_virtual_local_rank(self):
        script = self.script('#!/bin/sh\necho "$RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES"\n')
        flags = "--virtual-local-rank", "--nproc-per-node=2"
        env = with_variables(CUDA_VISIBLE_DEVICES="7,5")
        code, out, err = self.run_job(*flags, script, env=env)
        self.assertEqual((code, sorted(out.splitlines())), (0, ["0 0 7", "1 0 5"]), err)
        code, out, err = self.run_job(*flags, script, env=env | {"CUDA_VISIBLE_DEVICES": "3"})
        self.assertEqual((code, out), (1, ""))
        self.assertIn("CUDA_VISIBLE_DEVICES", err)


class CaseLegacyMode(CaseTest):
    """The habit of torch.distributed.launch: the local rank as the first argument."""

    def arguments(self, program, *flags):
        script = self.script("import sys\nsys.stdout.write(' '.join(sys.argv[1:]) + '\\n')\n", "t.py")
        code, out, err = self.run_job("--nproc-per-node=2", *flags, script, "a", program=(program,),
                                      env=with_variables(OMP_NUM_THREADS="1"))
        self.assertEqual(code, 0, err)
        return sorted(out.splitlines())

    def test_case_14_the_local_rank_is_the_first_argument(self):
        self.assertEqual(self.arguments(DDPRUN, "--local-rank"),
                         ["--local-rank=0 a", "--local-rank=1 a"])
        self.assertEqual(self.arguments(DDPRUN, "--local-rank", "--use-env"), ["a", "a"])

    @unittest.skipUnless(LAUNCH.exists(), "no ddprun-launch beside ddprun")
    def test_case_14_by_the_name_ddprun_launch(self):
        self.assertEqual(self.arguments(LAUNCH), ["--local-rank=0 a", "--local-rank=1 a"])
        self.assertEqual(self.arguments(LAUNCH, "--use-env"), ["a", "a"])
        self.assertEqual(self.arguments(LAUNCH, "--use_env"), ["a", "a"])
        code, _, err = self.run_job("--no-python", "/bin/true", program=(LAUNCH,))
        self.assertEqual(code, 1)
        self.assertIn("--no-python: expected --use-env beside it", err)


if __name__ == "__main__":
    main()
