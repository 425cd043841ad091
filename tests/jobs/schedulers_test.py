"""Schedulers by their variables alone: jobs that need no flags, and those that must not start. Real
ones are in tests/schedulers."""

import socket
import time
import unittest

import namespaces_test
from machine import free_port
from support import DDPRUN, PRINT_ENV, ROOT, JobTest, main, parse_env, with_variables

RECORDED = ROOT / "tests" / "launcher" / "scheduler"
NAME_LIMIT = 6  # seconds for a pod's own name
SLACK = 10
REFUSED_IN = 0.5  # seconds on a busy machine; a few milliseconds on an idle one


def recorded(name, **changes):
    """A recorded environment (its first line names its source), with these changes."""
    lines = (RECORDED / f"{name}.env").read_text().splitlines()
    variables = dict(line.replace("\\n", "\n").split("=", 1) for line in lines if not line.startswith("#"))
    for path in "PBS_NODEFILE", "COBALT_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE":
        if path in variables:
            variables[path] = str(RECORDED / variables[path])
    return with_variables(**(variables | changes))


class SchedulersTest(JobTest):
    def step(self, node, nodes=2, **changes):
        """The variables of one node of a Slurm step, all of whose nodes are this host. The job's
        number makes its port a free one."""
        hosts = ",".join(["127.0.0.1"] * nodes)
        own = {"SLURM_NODEID": str(node), "SLURM_STEP_NUM_NODES": str(nodes), "SLURM_STEP_NUM_TASKS": str(nodes), "SLURM_JOB_ID": self.job,
               "SLURM_STEP_NODELIST": hosts, "SLURM_JOB_NODELIST": hosts, "SLURM_STEP_TASKS_PER_NODE": f"1(x{nodes})",
               "HOME": str(self.folder)}
        return recorded("slurm_step", **(own | changes))

    def setUp(self):
        super().setUp()
        # Jobs have blocks of 8 ports from 15000 on, 37 blocks apart for each job
        # (launcher/scheduler). Any job will do: where its first port is taken the next one is used.
        self.job = str(free_port())

    def finish(self, jobs):
        results = [job.finish() for job in jobs]
        for job in jobs:
            job.wait_gone()
        return results


class NoFlags(SchedulersTest):
    def test_a_slurm_step_is_one_job(self):
        script = self.script(PRINT_ENV)
        results = self.finish([self.start("--nproc-per-node=2", script, env=self.step(node)) for node in (1, 0)])
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        envs = sorted((parse_env(line) for _, out, _ in results for line in out.splitlines()), key=lambda env: env["RANK"])
        self.assertEqual([(env["RANK"], env["GROUP_RANK"], env["WORLD_SIZE"]) for env in envs],
                         [("0", "0", "4"), ("1", "0", "4"), ("2", "1", "4"), ("3", "1", "4")])
        self.assertEqual({env["TORCHELASTIC_RUN_ID"] for env in envs}, {f"slurm-{self.job}.0"})
        self.assertEqual({env["OMP_NUM_THREADS"] for env in envs}, {"2"})  # SLURM_CPUS_PER_TASK=4

    def test_one_notice_says_it(self):
        results = self.finish([self.start("--nproc-per-node=1", "/bin/true", env=self.step(node, OMP_NUM_THREADS="1", DDPRUN_TOKEN="0123456789abcdef"))
                               for node in range(2)])
        self.assertRegex(results[0][2], rf"\Addprun: Slurm step slurm-{self.job}\.0: 2 nodes, meeting at 127\.0\.0\.1:\d+\n\Z")
        self.assertEqual(results[1][2], "")
        quiet = self.finish([self.start("--quiet", "/bin/true", env=self.step(node, DDPRUN_TOKEN="0123456789abcdef")) for node in range(2)])
        self.assertEqual([err for _, _, err in quiet], ["", ""])

    def test_the_number_of_nodes_alone(self):
        results = self.finish([self.start("--nnodes=2", self.script(PRINT_ENV), env=self.step(node)) for node in range(2)])
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        self.assertEqual(parse_env(results[0][1])["WORLD_SIZE"], "2")

    def port(self):
        return 15000 + int(self.job) * 37 % 1750 * 8

    def test_a_port_that_another_program_has(self):
        """It takes connections and never answers."""
        with socket.create_server(("", self.port())):
            results = self.finish([self.start("/bin/true", env=self.step(node)) for node in range(2)])
        self.assertEqual([code for code, _, _ in results], [0, 0], results)

    def test_a_port_at_which_another_job_is_served(self):
        """Step 1750 of a job has the ports of step 0."""
        waiting = self.worker("#!/bin/sh\necho $RANK > {fifo}\nexec sleep 1000\n")
        other = [self.start(waiting, env=self.step(node, SLURM_STEP_ID="1750")) for node in range(2)]
        self.heard(2)
        results = self.finish([self.start(self.script(PRINT_ENV, "env.sh"), env=self.step(node)) for node in (1, 0)])
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        self.assertEqual({parse_env(out)["TORCHELASTIC_RUN_ID"] for _, out, _ in results}, {f"slurm-{self.job}.0"})
        self.assertTrue(all(job.process.poll() is None for job in other))

    def test_open_mpi(self):
        script = self.script(PRINT_ENV)
        results = self.finish([self.start(script, env=recorded("open_mpi_in_slurm", OMPI_COMM_WORLD_RANK=str(node), MASTER_ADDR="127.0.0.1",
                                                               PMIX_NAMESPACE=self.job)) for node in range(2)])
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        self.assertEqual(sorted(parse_env(out)["RANK"] for _, out, _ in results), ["0", "1"])
        self.assertEqual({parse_env(out)["WORLD_SIZE"] for _, out, _ in results}, {"2"})

    def test_in_a_worker_nothing_is_detected(self):
        """A worker's own ddprun is a job of its own."""
        inner = self.script(f"#!/bin/sh\nexec {DDPRUN} {self.script(PRINT_ENV, 'env.sh')}\n", "inner.sh")
        results = self.finish([self.start(inner, env=self.step(node)) for node in range(2)])
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        self.assertEqual({parse_env(out)["WORLD_SIZE"] for _, out, _ in results}, {"1"})

    def test_flags_are_left_alone(self):
        envs, err = self.envs("--standalone", "--nproc-per-node=2", self.script(PRINT_ENV), env=recorded("slurm_batch_script", OMP_NUM_THREADS="1"))
        self.assertEqual(([env["WORLD_SIZE"] for env in envs], err), (["2", "2"], ""))


class Refusals(SchedulersTest):
    """A world smaller than asked for never starts; one line says what to type."""

    def refused_soon(self, env, wanted, *args):
        begin = time.monotonic()
        self.refused(2, wanted, *args, "/bin/true", env=env)
        self.assertLess(time.monotonic() - begin, REFUSED_IN)

    def test_a_job_of_several_nodes_on_one(self):
        for name in "slurm_batch_script", "slurm_allocation", "slurm_interactive_step", "slurm_step_on_one_of_two_nodes":
            with self.subTest(name):
                self.refused_soon(recorded(name), ["2 nodes", "`srun --ntasks-per-node=1 --nodes=2 ddprun …`", "--standalone"])
        self.refused_soon(recorded("pbs_job"), ["PBS job has 2 nodes", "`mpiexec -n 2 --ppn 1 ddprun …`"])
        self.refused_soon(recorded("cobalt_job"), ["Cobalt job has 2 nodes", "`mpiexec -n 2 -ppn 1 ddprun …`"])

    def test_several_launchers_on_a_node(self):
        self.refused_soon(recorded("slurm_step_of_four_tasks"), ["3 ddpruns on one node", "`srun --ntasks-per-node=1 --nodes=2 ddprun …`"])
        self.refused_soon(recorded("slurm_step_with_unequal_nodes"), ["2 ddpruns on one node"])
        self.refused_soon(recorded("open_mpi_on_one_host"), ["2 ddpruns on one node", "`mpirun --map-by ppr:1:node ddprun …`"])
        self.refused_soon(recorded("mpich_on_one_host"), ["2 ddpruns on one node", "`mpiexec -n 1 -ppn 1 ddprun …`"])

    def test_another_number_of_nodes(self):
        self.refused_soon(recorded("slurm_step"), ["--nnodes=3", "has 2 nodes", "leave --nnodes out"], "--nnodes=3")

    def test_what_an_operator_says(self):
        self.refused_soon(recorded("pytorchjob"), ["WORLD_SIZE=2", "--nnodes=$WORLD_SIZE --node-rank=$RANK"])

        self.refused_soon(recorded("pytorchjob"), ["WORLD_SIZE=2", "--nnodes=$WORLD_SIZE --node-rank=$RANK"], "--nnodes=2")
        other = {"MASTER_ADDR": "a", "WORLD_SIZE": "4", "RANK": "1"}
        self.refused_soon(recorded("slurm_step", **other), ["WORLD_SIZE=4", "`unset WORLD_SIZE RANK`"])

    def test_a_flag_that_would_split_a_step(self):
        self.refused_soon(recorded("slurm_step"), ["--rdzv-id=x without --nnodes", "type --nnodes=2 beside it"], "--rdzv-id=x")

    def test_one_node_of_a_heterogeneous_job(self):
        self.refused_soon(recorded("slurm_batch_script", SLURM_HET_SIZE="2", SLURM_JOB_NUM_NODES="1"), ["2 nodes", "`srun --het-group=0-1 "])

    @unittest.skipUnless(namespaces_test.can_make_namespaces(), "network namespaces need CAP_SYS_ADMIN and iproute2")
    def test_a_resolver_that_does_not_know_the_pod_itself(self):
        """It never answers; the pod is not held up for as long as a resolver would ask."""
        resolver = self.folder / "resolv.conf"
        resolver.write_text("nameserver 192.0.2.1\noptions timeout:30 attempts:5\n")
        silent = (f"mount --bind {resolver} /etc/resolv.conf; hostname digits-1; ip link add d0 type veth peer name d1; ip link set d1 up; "
                  'ip addr add 10.9.9.1/24 dev d0; ip link set d0 up; ip route add default via 10.9.9.2; unset RES_OPTIONS; exec "$@"')
        begin = time.monotonic()
        self.refused(2, ["pod 0 has no name", "`subdomain`"], "--nnodes=2", "/bin/true", env=recorded("indexed_job", JOB_COMPLETION_INDEX="1"),
                     prefix=("unshare", "--mount", "--uts", "--net", "sh", "-ec", silent, "sh"))
        self.assertLess(time.monotonic() - begin, NAME_LIMIT + SLACK)

    def test_mpi_without_a_first_host(self):
        self.refused_soon(recorded("open_mpi_on_one_host", OMPI_COMM_WORLD_LOCAL_SIZE="1"), ["-x MASTER_ADDR=HOST"])

    def test_a_first_host_on_which_rank_0_is_not(self):
        """`mpirun --host` in a larger allocation: the others look for it where the list begins, or
        where MASTER_ADDR says."""
        self.refused(1, ["192.0.2.1 is the first host", "hand MASTER_ADDR=", "--rdzv-id=mpi-91881473 --rdzv-endpoint="], "--quiet", "/bin/true",
                     env=recorded("open_mpi_in_slurm", OMPI_COMM_WORLD_RANK="0", MASTER_ADDR="192.0.2.1", OMP_NUM_THREADS="1"))

    def test_standalone_and_one_node_mean_it(self):
        for name in "slurm_batch_script", "slurm_step_of_four_tasks", "open_mpi_on_one_host", "pytorchjob", "pbs_job":
            for flag in "--standalone", "--nnodes=1":
                with self.subTest(name, flag=flag):
                    env = self.env_of_one(flag, self.script(PRINT_ENV), env=recorded(name))
                    self.assertEqual(env["WORLD_SIZE"], "1")


if __name__ == "__main__":
    main()
