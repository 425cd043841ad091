"""Each example on a synthetic set. It runs with 1, 2 and 4 workers, and ends as its Python twin
does.

DDPRUN names the launcher; the examples are beside it.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import digits
import mnist_restart_test
import support

DDPRUN = os.environ.get("DDPRUN", str(support.ROOT / "build" / "bin" / "ddprun"))
BIN = pathlib.Path(DDPRUN).parent
TWINS = support.ROOT / "examples" / "pytorch"
DATA = support.ROOT / "examples" / "data"
END = r"weights=[0-9a-f]{16}\naccuracy=[01]\.\d{4}\n$"
# That a run of an example may take on its synthetic set.
LONGEST_S = max(60, float(os.environ.get("DDPRUN_TEST_DEADLINE", 0)))
WORKERS = 1, 2, 4  # each example runs with each of these: tests/house/examples_page_test.py

sys.path.insert(0, str(support.ROOT / "tests" / "jobs"))
import pytorch_exit  # noqa: E402  (found by the line above)


class Example(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def make(self, name, train, held_out, *more):
        subprocess.run([DATA / "synthesize", name, self.folder / name, f"--train={train}", f"--held-out={held_out}", *more], check=True)
        return "--data", self.folder / name

    def ours(self, workers, name, *flags, code=0):
        done = support.run(DDPRUN, "--standalone", f"--nproc-per-node={workers}", "--no-python", BIN / name, *flags, deadline=LONGEST_S)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code == 0 else done.stderr

    def theirs(self, workers, name, *flags, python=None):
        python = python or support.python_with_torch()
        if python is None:
            self.skipTest("no Python with torch here")
        for _ in range(pytorch_exit.RUNS_WITH_ABORTS):
            done = support.run(DDPRUN, "--standalone", f"--nproc-per-node={workers}", TWINS / f"{name}.py", *flags, PYTHON_EXEC=python)
            if not pytorch_exit.aborted(done.returncode, done.stderr, 1):
                break
            print("PyTorch aborted at its exit: once more")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def check_workers(self, name, *flags, learnt):
        """With each number of workers; one worker's accuracy tells that the net has learnt."""
        for workers in WORKERS:
            output = self.ours(workers, name, *flags)
            self.assertRegex(output, END)
            if workers == 1:
                self.assertGreaterEqual(float(support.value_of("accuracy", output)), learnt, output)

    def check_same_end(self, name, *flags, workers):
        """Weights and accuracy are equal bit for bit; losses to the last digit."""
        self.assertEqual(self.ours(workers, name, *flags), self.theirs(workers, name, *flags))


class MinimalSampler(Example):
    def test_lists_are_disjoint_whole_and_those_of_pytorch(self):
        output = self.ours(3, "minimal_sampler")
        lists = re.findall(r"^epoch (\d) rank \d: (.*)$", output, re.MULTILINE)
        self.assertEqual(len(lists), 6)
        for epoch in "01":
            seen = [int(n) for e, text in lists if e == epoch for n in re.findall(r"\d+", text)]
            self.assertEqual(sorted(seen), list(range(24)))
        self.assertEqual(output, self.theirs(3, "minimal_sampler"))
        for workers in WORKERS:
            self.assertEqual(self.ours(workers, "minimal_sampler").count("epoch 0"), workers)


class Metrics(Example):
    def test_are_those_of_pytorch_and_no_mean_of_means(self):
        output = self.ours(3, "metrics")
        self.assertEqual(output, self.theirs(3, "metrics"))
        self.assertNotEqual(support.value_of("mean over all samples", output), support.value_of("mean of the ranks' means", output))
        self.assertEqual(support.value_of("accuracy", output), "0.400000")
        self.assertNotEqual(support.value_of("accuracy with the padding", output), "0.400000")

    def test_any_number_of_workers(self):
        """No padding with one and two of them. The accuracy never depends on their number."""
        for workers in WORKERS:
            output = self.ours(workers, "metrics")
            self.assertEqual(output, self.theirs(workers, "metrics"))
            self.assertEqual(support.value_of("accuracy", output), "0.400000")
            self.assertEqual(support.value_of("accuracy with the padding", output) == "0.400000", 10 % workers == 0)


class Updates(Example):
    def test_counts_what_the_formulas_say(self):
        for workers in (2, 3, 4, 5, 6):
            output = self.ours(workers, "updates", "--steps=20", "--hidden=62", "--largest=240", "--times=3", "--curves", self.folder / "c.csv")
            # 20 x 62 + 62 + 62 x 10 + 10 = 1,932 numbers, padded to a multiple of 60
            size = 1980 * 4
            server, ring = 2 * (workers - 1) * size, 2 * size * (workers - 1) // workers
            self.assertEqual(output.count(f"rank 0 sends and receives 2(N-1)K: {server} bytes a step = {server}\n"), 2, output)
            for verb in ("sends", "receives"):
                self.assertIn(f"each rank {verb} 2K(N-1)/N: {', '.join([str(ring)] * workers)} bytes a step = {ring}\n", output)
            self.assertEqual(len(set(re.findall(r"^(?!.*asynchronous).*: test loss (.*)$", output, re.MULTILINE))), 1, output)
            self.assertRegex(output, rf"stale updates: \d+ of {20 * workers}\n")
            self.assertEqual(len(re.findall(r"residual +[+-]\d+\.\d %", output)), 9)
            rows = (self.folder / "c.csv").read_text().splitlines()
            self.assertEqual([sum(row.startswith('"' + way) for row in rows) for way in ("parameter server, sy", "parameter server, as", "ring", "shared")], [20, 21, 20, 20])
            if workers == 5:
                continue  # the twin's processes take long to start
            counted = [line for line in self.theirs(workers, "updates", "--numbers=1980").splitlines() if line.startswith("  ")]
            self.assertEqual(len(counted), 3)
            for line in counted:
                self.assertIn(line, output.splitlines())

    def test_refuses_a_world_of_one(self):
        self.assertIn("updates: 1 workers; expected 2 to 6", self.ours(1, "updates", code=1))


class Mnist(Example):
    def test_any_number_of_workers(self):
        digits.write_subset(self.folder, train=403, held_out=77)
        flags = "--data", self.folder, "--epochs=1"
        for workers in WORKERS:
            ours, theirs = self.ours(workers, "mnist", *flags), self.theirs(workers, "ddp_mnist", *flags)
            for name in ("loss", "accuracy"):
                self.assertEqual(support.value_of(name, ours), support.value_of(name, theirs), name)


class Zero(Example):
    def test_has_the_same_end_with_less_on_each_rank_and_that_of_its_twin(self):
        for workers in WORKERS:
            sharded, whole = self.ours(workers, "zero", "--zero"), self.ours(workers, "zero")
            *lines, bytes_sharded = sharded.splitlines()
            *others, bytes_whole = whole.splitlines()
            self.assertEqual(lines, others)
            if workers == 1:
                self.assertGreaterEqual(float(support.value_of("accuracy", sharded)), 0.5, sharded)
            (*ranks, total), (*all_of_it, _) = ([int(n) for n in re.findall(r"\d+", text)] for text in (bytes_sharded, bytes_whole))
            self.assertEqual((sum(ranks), all_of_it), (total, [total] * workers))
            self.assertLess(max(ranks) * workers, 1.25 * total)
            self.assertEqual(sharded, self.theirs(workers, "zero", "--zero"))


class Uneven(Example):
    def test_ends_as_its_twin(self):
        for workers in (1, 2, 3, 4):
            output = self.ours(workers, "uneven")
            self.assertIn(f"batches of the ranks: {', '.join(['10', '13', '7', '10'][:workers])}\n", output)
            self.assertEqual(output, self.theirs(workers, "uneven"))

    def test_without_join_ends_with_what_the_ranks_wait_for(self):
        for workers in (2, 3, 4):
            self.assertRegex(self.ours(workers, "uneven", "--no-join", code=1), r"uneven: rank \d waits in .* of bucket \d.*none of them can go on\n")


class LocalSgd(Example):
    def test_ends_as_its_twin(self):
        for workers in WORKERS:
            ends = set()
            for flags in ((), ("--levels",)):
                output = self.ours(workers, "local_sgd", *flags)
                self.assertEqual(output, self.theirs(workers, "local_sgd", *flags))
                self.assertGreaterEqual(float(support.value_of("accuracy", output)), 0.4, output)
                ends.add(support.value_of("weights", output))
            self.assertEqual(len(ends), 2 if workers > 2 else 1)


class TensorParallel(Example):
    def test_ends_as_its_twin_with_a_part_of_the_numbers(self):
        for workers in WORKERS:
            for flags in ((), ("--sequence",)):
                output = self.ours(workers, "tensor_parallel", *flags)
                self.assertEqual(output, self.theirs(workers, "tensor_parallel", *flags))
                losses = [float(loss) for loss in re.findall(r"loss=(.*)", output)]
                self.assertEqual(len(losses), 6)
                self.assertLess(losses[-1], losses[0] / 4)
                # down.bias and norm are whole on each worker.
                self.assertIn(f"numbers of a worker: {(2 * 64 * 32 + 2 * 4 * 32 * 32 + 4 * 32) // workers + 3 * 32}\n", output)

    def test_refuses_what_does_not_divide(self):
        self.assertIn("tensor_parallel: VocabEmbedding: num_embeddings 63 given, expected a multiple of the group's 2 ranks\n",
                      self.ours(2, "tensor_parallel", "--words=63", code=1))
        self.assertIn("tensor_parallel: TensorGroup: a dimension of size 15 given, expected a multiple of the group's 2 ranks\n",
                      self.ours(2, "tensor_parallel", "--sequence", "--length=15", code=1))


class Gpt(Example):
    FLAGS = "--width=32", "--layers=2", "--length=16"
    STEPS = "--steps=30"
    NUMBERS = 34176  # of the whole
    CLOSE = 1e-5  # of losses of whose sums the order differs

    def losses(self, output):
        return [float(loss) for loss in re.findall(r"loss=(.*)", output)]

    def assert_close(self, ours, theirs, delta=CLOSE):
        self.assertEqual(len(ours), len(theirs))
        for mine, other in zip(ours, theirs):
            self.assertAlmostEqual(mine, other, delta=delta)

    def killed(self, workers, *flags):
        """The lines of a run of 10 steps. Then those of one that goes on, and whose worker 0 is
        killed while it saves step 20."""
        run = self.folder / "run"
        flags = *flags, "--checkpoint", run
        before = self.ours(workers, "gpt", *flags, "--steps=10").splitlines()
        # Its opening waits for a reader, and none comes.
        unwritable = run / "latest.new"
        os.mkfifo(unwritable)
        job = f"{os.getpid()}-{self.id()}"
        command = DDPRUN, "--standalone", f"--nproc-per-node={workers}", "--max-restarts=1", "--no-python", BIN / "gpt", *flags, self.STEPS
        lines = []
        with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              env=support.environment(**{mnist_restart_test.MARKER: job})) as process:
            watchdog = threading.Timer(LONGEST_S, process.kill)
            watchdog.start()
            for line in process.stdout:
                lines.append(line.rstrip())
                if line.startswith("step 20 ") and unwritable.exists():
                    victim, = mnist_restart_test.processes_of(job, "RANK=0")
                    os.kill(victim, signal.SIGSTOP)  # so that it cannot write the file in between
                    unwritable.unlink()
                    os.kill(victim, signal.SIGKILL)
            self.assertTrue(watchdog.is_alive(), "the job did not end")
            watchdog.cancel()
        self.assertEqual(process.returncode, 0, lines)
        return before, lines

    def check(self, mesh, workers, part, wanted, within=None):
        """A run that was killed prints what `wanted(...)` does undisturbed. `part`: of the whole's
        numbers that a worker has, at most. `within`: only losses are compared, and may differ so
        far."""
        flags = f"--mesh={mesh}", *self.FLAGS
        (tenth, _), (resumed, lost, *lines) = self.killed(workers, *flags)
        again, *rest = lines
        self.assertEqual((resumed, again, rest[0]), ("resumed after step 10", resumed, lost))
        self.assertLessEqual(int(rest[-1].split()[-1]), part * self.NUMBERS, rest)
        output = "".join(f"{line}\n" for line in (tenth, *rest))
        undisturbed = wanted(workers, "gpt", *flags, self.STEPS)
        if within is None:
            self.assertEqual(output, undisturbed)
        else:
            self.assert_close(self.losses(output), self.losses(undisturbed), within)

    def test_losses_are_the_same_in_any_mesh(self):
        whole = None
        for workers in WORKERS:
            output = self.ours(workers, "gpt", *self.FLAGS, self.STEPS)
            whole = whole or self.losses(output)
            self.assert_close(self.losses(output), whole)
            self.assertTrue(output.endswith(f"numbers of a worker: {self.NUMBERS}\n"), output)
        self.assertLess(whole[-1], whole[0] - 0.3)
        for mesh in ("tensor=2,sharded=2", "data=2,pipeline=2"):
            self.assert_close(self.losses(self.ours(4, "gpt", f"--mesh={mesh}", *self.FLAGS, self.STEPS)), whole)

    def test_data(self):
        self.check("data=4", 4, 1, self.ours)

    def test_data_and_tensor(self):
        self.check("data=2,tensor=2", 4, 0.53, self.theirs)

    def test_tensor_and_pipeline(self):
        self.check("tensor=2,pipeline=2", 4, 0.30, self.theirs)

    def test_sharded(self):
        self.check("sharded=4", 4, 0.26, self.theirs, within=self.CLOSE)

    def test_sharded_stages(self):
        self.check("sharded=2,pipeline=2", 4, 0.26, self.theirs, within=0)

    def test_refuses_another_run_and_what_does_not_fit(self):
        """tests/examples/gpt_options_test.cc has all the lines."""
        def refused(*flags):
            done = support.run(BIN / "gpt", *flags)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            return done.stderr

        self.assertEqual(refused("--mesh=data=2"), "gpt: --mesh: 'data=2' given, expected axes whose product is the 1 workers\n")
        self.assertEqual(refused("--length=3494"), f"gpt: --length: 3494 given, expected less than the 3494 characters of {DATA}/harbour/harbour.txt\n")
        self.assertEqual(support.run(BIN / "gpt", "--steps=1", "--checkpoint", self.folder).returncode, 0)
        self.assertEqual(refused("--mesh=tensor=1", "--checkpoint", self.folder),
                         f"gpt: --checkpoint: {self.folder} has a run '1 --mesh=data=1', expected '--mesh=tensor=1'\n")


class Pipeline(Example):
    def test_has_the_same_losses_on_any_number_of_workers_and_in_its_twin(self):
        outputs = [self.ours(workers, "pipeline", "--steps=20") for workers in WORKERS]
        outputs.append(self.ours(4, "pipeline", "--steps=20", "--schedule=gpipe"))
        losses = [re.findall("loss=(.*)", output) for output in outputs]
        self.assertEqual(losses, [losses[0]] * 4)
        self.assertLess(float(losses[0][-1]), float(losses[0][0]) / 4)
        self.assertEqual([re.findall("alive: (.*)", output) for output in outputs], [["1"], ["2"], ["4"], ["8"]])
        self.assertEqual(outputs[2], self.theirs(4, "pipeline", "--steps=20"))

    def test_halves_in_each_worker_end_as_their_twin(self):
        outputs = [self.ours(workers, "pipeline", "--steps=20", "--halves") for workers in WORKERS]
        self.assertEqual(outputs[1], self.theirs(2, "pipeline", "--steps=20", "--halves"))
        for first, *others in zip(*(re.findall("loss=(.*)", output) for output in outputs), strict=True):
            for other in others:
                self.assertAlmostEqual(float(other), float(first), delta=1e-4)

    def test_refuses_what_does_not_divide(self):
        self.assertIn("pipeline: --layers: 7 given, expected a multiple of 2 workers\n", self.ours(2, "pipeline", "--layers=7", code=1))
        self.assertIn("pipeline: Pipeline: inputs of 16 rows given, expected a multiple of the 5 micro-batches\n",
                      self.ours(2, "pipeline", "--micro-batches=5", code=1))
        for flag, why in (("--layers=7", "expected a multiple of the 2 halves"), ("--batch-size=7", "expected a multiple of 2 workers")):
            self.assertIn(f"pipeline: {flag.replace('=', ': ')} given, {why}\n", self.ours(2, "pipeline", "--halves", flag, code=1))

    def test_a_lost_worker_ends_the_job(self):
        says_its_pid = f'echo $$ > "{self.folder}/$RANK"; exec "{BIN}/pipeline" --layers=6 --steps=100000'
        with subprocess.Popen([DDPRUN, "--standalone", "--nproc-per-node=3", "--no-python", "sh", "-c", says_its_pid],
                              env=support.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
            watchdog = threading.Timer(LONGEST_S, job.kill)
            watchdog.start()
            self.assertRegex(job.stdout.readline(), "^step 10 loss=")
            os.kill(int((self.folder / "1").read_text()), signal.SIGKILL)
            _, errors = job.communicate()
            self.assertTrue(watchdog.is_alive(), "the job did not end")
            watchdog.cancel()
        self.assertEqual(job.returncode, 1, errors)
        self.assertRegex(errors, "(?m)SIGKILL")


class BenchParallel(Example):
    def test_prints_a_row_of_times_and_memory(self):
        python = support.python_with_torch()
        if python is None:
            self.skipTest("no Python with torch here")
        bench = support.ROOT / "bench" / "parallel"
        done = support.run(bench, "--build", BIN.parent, "--python", python, "--ways=pipeline,gpipe", "--models=sum", "--rounds=1", "--steps=1", deadline=2 * LONGEST_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("milliseconds a step with its optimizer (ddprun::Adam, torch.optim.Adam), ", done.stdout)
        for schedule in ("1F1B", "GPipe"):
            self.assertRegex(done.stdout, rf"\| pipeline, {schedule}, 2 ranks, much to sum \| [0-9.]+ \(.*\) \| [0-9.]+ \(.*\) \| [0-9.]+ \| 128 \|")
        refused = support.run(bench, "--ways=ring")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("argument --ways: 'ring' is not accepted; expected some of tensor,mesh,sharded,local,pipeline,gpipe\n", refused.stderr)


class WhichPage(Example):
    """The commands of docs/which.md that no other test runs, on a small case."""

    def table(self, name, *flags):
        done = support.run(support.ROOT / "bench" / name, "--build", BIN.parent, "--rows=1", "--rounds=1", "--steps=1", *flags, deadline=2 * LONGEST_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_sharded_beside_fully_shard(self):
        python = support.python_with_torch()
        if python is None:
            self.skipTest("no Python with torch here")
        self.assertRegex(self.table("sharded", "--python", python), r"\| 8 layers of 512 .* \| [0-9.]+ \(.*\) \| [0-9.]+ \(.*\) \| [0-9.]+ \|\n\n")

    def test_replicas_beside_processes(self):
        self.assertRegex(self.table("replicas"), r"\| 0.8 M weights, batch 512 (\| [0-9.]+ ){5}\|\n$")


class Device(Example):
    """These tests show no GPU to the programs (support.py)."""

    def test_cuda_without_a_gpu_is_refused(self):
        runs = {"mnist": (), "zero": (), "local_sgd": (), "tensor_parallel": (), "pipeline": (), "gpt": (), "uneven": (), "adults": self.make("adults", 20, 10), "imdb": self.make("imdb", 8, 4),
                "cifar10": self.make("cifar10", 20, 10), "image_folder": self.make("imagenette", 20, 10)}
        for name, flags in runs.items():
            done = support.run(BIN / name, *flags, "--device=cuda")
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertRegex(done.stderr, rf"^{name}: --device: 'cuda' given, expected auto or cpu on this machine: (no GPU: CUDA|this build has no NCCL): [^\n]*\n$")

    def test_twins_and_the_bench_refuse_it_too(self):
        python = support.python_with_torch()
        if python is None:
            self.skipTest("no Python with torch here")
        for command, why in (((TWINS / "ddp_mnist.py",), "--device: 'cuda' given, expected cpu, or cuda where each rank has a GPU"),
                             ((TWINS / "cifar10.py", "--data", self.folder), "--device: 'cuda' given, expected cpu, or cuda where each rank has a GPU"),
                             ((support.ROOT / "bench" / "scaling", "--python", python), "--device: 'cuda' is not accepted here; cpu is")):
            done = support.run(python, *command, "--device=cuda")
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertIn(why, done.stderr.splitlines()[-1])

    def test_auto_is_the_cpu_then(self):
        for workers in (1, 2):
            self.assertEqual(self.ours(workers, "uneven", "--device=auto"), self.ours(workers, "uneven", "--device=cpu"))

    def test_other_words_and_programs_without_it_are_refused(self):
        for name, flag, why in (("zero", "--device=gpu", "--device: 'gpu' given, expected auto, cpu or cuda"),
                                ("updates", "--device=cuda", "--device: 'cuda' given, expected auto or cpu"),
                                ("metrics", "--device=cpu", "--device: unknown argument; --help lists all")):
            done = support.run(BIN / name, flag)
            self.assertEqual((done.returncode, done.stderr), (2, f"{name}: {why}\n"))


class Adults(Example):
    def test_any_number_of_workers(self):
        self.check_workers("adults", *self.make("adults", 1500, 301), learnt=0.7)

    def test_ends_as_its_twin(self):
        data = self.make("adults", 601, 101)
        for workers in WORKERS:
            self.check_same_end("adults", *data, "--epochs=2", workers=workers)

    def test_names_what_is_wrong_with_the_data(self):
        data = self.make("adults", 20, 10)
        (data[1] / "adult.data").write_text("39, Private, 77516\n")
        self.assertIn(f"adults: --data: read {data[1]}/adult.data: line 1: 3 cells, expected 15", self.ours(1, "adults", *data, code=1))


class Imdb(Example):
    FLAGS = "--words=150", "--long-text=40", "--batch-size=4"

    def test_any_number_of_workers(self):
        self.check_workers("imdb", *self.make("imdb", 400, 101), *self.FLAGS, learnt=0.8)

    def test_ends_as_its_twin(self):
        data = self.make("imdb", 202, 51)
        for workers in WORKERS:
            self.check_same_end("imdb", *data, *self.FLAGS, "--epochs=2", workers=workers)


class Cifar10(Example):
    FLAGS = "--width=8", "--batch-size=10"

    def test_any_number_of_workers(self):
        self.check_workers("cifar10", *self.make("cifar10", 200, 41), *self.FLAGS, "--epochs=8", learnt=0.3)

    def test_ends_as_its_twin(self):
        self.check_same_end("cifar10", *self.make("cifar10", 100, 31), *self.FLAGS, "--epochs=2", workers=2)

    def test_cut_off_in_an_epoch_and_resumed_is_as_good_as_undisturbed(self):
        data = self.make("cifar10", 120, 20)
        whole = self.ours(2, "cifar10", *data, *self.FLAGS, "--epochs=2")
        save = "--checkpoint", self.folder / "c.pt"
        self.ours(2, "cifar10", *data, *self.FLAGS, "--epochs=2", "--steps=4", *save)
        self.ours(2, "cifar10", *data, *self.FLAGS, "--epochs=2", "--steps=5", *save)
        rest = self.ours(2, "cifar10", *data, *self.FLAGS, "--epochs=2", *save)
        for name in ("weights", "accuracy"):
            self.assertEqual(support.value_of(name, rest), support.value_of(name, whole), name)

    def test_goes_on_with_another_number_of_workers(self):
        data = self.make("cifar10", 120, 20)
        save = "--checkpoint", self.folder / "c.pt"
        self.ours(2, "cifar10", *data, *self.FLAGS, "--epochs=1", "--steps=3", *save)
        self.assertIn("epoch 1/1 loss=", self.ours(3, "cifar10", *data, *self.FLAGS, "--epochs=1", *save))

    def test_other_nets_end_as_their_twins(self):
        data = self.make("cifar10", 60, 21)
        for model in ("alexnet", "vgg11"):
            self.check_same_end("cifar10", *data, *self.FLAGS, "--epochs=1", f"--model={model}", workers=2)

    def test_in_16_bits_is_as_good_as_in_32(self):
        """With a low rate, and four classes. With more of them so short a training ends anywhere
        between 0.5 and 1."""
        flags = *self.make("cifar10", 800, 240, "--classes=4"), "--width=4", "--batch-size=20", "--lr=0.005", "--epochs=5"
        whole, half = self.ours(2, "cifar10", *flags), self.ours(2, "cifar10", *flags, "--bf16")
        accuracy = [float(support.value_of("accuracy", output)) for output in (whole, half)]
        self.assertGreaterEqual(accuracy[0], 0.9, whole)
        self.assertAlmostEqual(accuracy[1], accuracy[0], delta=0.01, msg=whole + half)
        self.assertNotEqual(support.value_of("weights", half), support.value_of("weights", whole))

    def test_in_16_bits_ends_as_its_twin(self):
        self.check_same_end("cifar10", *self.make("cifar10", 100, 31), *self.FLAGS, "--epochs=2", "--bf16", workers=2)


class ImageFolder(Example):
    FLAGS = "--width=8", "--side=32", "--batch-size=8"

    def test_any_number_of_workers(self):
        self.check_workers("image_folder", *self.make("imagenette", 80, 21), *self.FLAGS, "--epochs=4", learnt=0.5)

    def test_its_twin_learns_too(self):
        """Pillow scales in another way, so its end is another one."""
        python = support.ROOT / ".venv-trainers" / "bin" / "python"
        if not python.exists():
            self.skipTest("needs Pillow: scripts/setup.sh --tests")
        data = self.make("imagenette", 80, 21)
        output = self.theirs(2, "image_folder", *data, *self.FLAGS, "--epochs=10", python=python)
        self.assertRegex(output, END)
        self.assertGreaterEqual(float(support.value_of("accuracy", output)), 0.5, output)

    def test_other_nets_train_and_say_which_sides_they_take(self):
        data = self.make("imagenette", 16, 4)
        for model, side in (("alexnet", 63), ("vgg11", 32)):
            flags = *data, "--width=4", "--batch-size=8", "--epochs=1", f"--model={model}"
            self.assertRegex(self.ours(1, "image_folder", *flags, f"--side={side}"), END)
            done = support.run(BIN / "image_folder", *flags, f"--side={side - 1}")
            self.assertEqual((done.returncode, done.stderr), (2, f"image_folder: --side: {side - 1} given, expected {side} or more for --model={model}\n"))

    def test_names_a_corrupt_file(self):
        data = self.make("imagenette", 24, 8)
        bad = data[1] / "train" / "class01" / "00005.png"
        bad.write_bytes(bad.read_bytes()[:200])
        self.assertIn(f"image_folder: read {bad}: ", self.ours(2, "image_folder", *data, *self.FLAGS, code=1))


if __name__ == "__main__":
    support.run_tests()
