"""Platforms by their variables alone, each for a job of two nodes. No flag says anything of nodes.
One world forms on two hosts, or one line says what to type. A smaller world never starts."""

import json
import os
import unittest

import namespaces_test
from schedulers_test import recorded
from support import PRINT_ENV, JobTest, main, parse_env

FIRST, SECOND = "10.77.0.1", "10.77.0.2"
BOTH = f"{FIRST},{SECOND}"
NAME = "digits-0.digits-job-svc"  # Lepton's name of the first node

# The variables of node K that differ from those that were recorded.
WORLDS = {
    "slurm_step": lambda k: {"SLURM_NODEID": k, "SLURM_STEP_NODELIST": BOTH, "SLURM_JOB_NODELIST": BOTH},
    "open_mpi_in_slurm": lambda k: {"OMPI_COMM_WORLD_RANK": k, "MASTER_ADDR": FIRST},
    "pals": lambda k: {"PALS_RANKID": k, "MASTER_ADDR": FIRST},
    "mpich_in_slurm": lambda k: {"PMI_RANK": k, "MASTER_ADDR": FIRST},
    "flux": lambda k: {"FLUX_TASK_RANK": k},
    "sagemaker": lambda k: {"SM_HOSTS": json.dumps([FIRST, SECOND]), "SM_CURRENT_HOST": (FIRST, SECOND)[int(k)]},
    "trainer_2": lambda k: {"PET_NODE_RANK": k, "PET_MASTER_ADDR": FIRST, "JOB_COMPLETION_INDEX": k},
    "skypilot": lambda k: {"SKYPILOT_NODE_RANK": k, "SKYPILOT_NODE_IPS": f"{FIRST}\n{SECOND}"},
    "dstack": lambda k: {"DSTACK_NODE_RANK": k, "DSTACK_MASTER_NODE_IP": FIRST},
    "runpod": lambda k: {"NODE_RANK": k, "PRIMARY_ADDR": FIRST, "MASTER_ADDR": FIRST},
    "azure_ml": lambda k: {"NODE_RANK": k, "RANK": k, "MASTER_ADDR": FIRST},
    "lepton": lambda k: {"LEPTON_JOB_WORKER_INDEX": k},
    "beaker": lambda k: {"BEAKER_REPLICA_RANK": k, "BEAKER_LEADER_REPLICA_HOSTNAME": FIRST},
    "vertex": lambda k: {"CLUSTER_SPEC": json.dumps({"cluster": {"workerpool0": [f"{FIRST}:2222"], "workerpool1": [f"{SECOND}:2222"]},
                                                     "task": {"type": f"workerpool{k}", "index": 0}})},
    "mind_cluster": lambda k: {"RANK": k, "MASTER_ADDR": FIRST},
    "condor": lambda k: {"_CONDOR_PROCNO": k, "MASTER_ADDR": FIRST},
    "volcano": lambda k: {"VC_TASK_INDEX": k, "VC_WORKER_HOSTS": BOTH},
}
REFUSALS = {
    "slurm_batch_script": "`srun --ntasks-per-node=1 --nodes=2 ddprun …`",
    "pbs_job": "`mpiexec -n 2 --ppn 1 ddprun …`",
    "cobalt_job": "`mpiexec -n 2 -ppn 1 ddprun …`",
    "lsf_without_file": "`mpirun --map-by ppr:1:node ddprun …`",
    "grid_engine": "`mpirun --map-by ppr:1:node ddprun …`",
    "flux_of_four_tasks": "`flux run -N 2 --tasks-per-node=1 ddprun …`",
    "flux_allocation": "`flux run -N 2 --tasks-per-node=1 ddprun …`",
    "condor": "type MASTER_ADDR=HOST before it",
    "volcano_of_two_tasks": "type --nnodes=2 --rdzv-backend=c10d",
    "pytorchjob": "--nnodes=$WORLD_SIZE --node-rank=$RANK",
    "pai_dlc": "--nnodes=$WORLD_SIZE --node-rank=$RANK",
    "vertex_pytorch": "--nnodes=$WORLD_SIZE --node-rank=$RANK",
    "indexed_job": "type --nnodes=N with the Job's number of completions",
}
# Instead of Flux's own program.
FLUX = f"""#!/bin/sh
case "$*" in "hostlist local") echo {BOTH};; "getattr size") echo 2;; *) exit 1;; esac
"""


class WithFlux(JobTest):
    def variables(self, name, **changes):
        self.script(FLUX, "flux")
        return recorded(name, **{"HOME": str(self.folder), "PATH": f"{self.folder}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"} | changes)


class Worlds(namespaces_test.TwoHosts, WithFlux):
    def test_each_forms_the_world_of_two_nodes(self):
        hosts = self.folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{FIRST} {NAME}\n")
        script = self.script(PRINT_ENV)
        for name, own in WORLDS.items():
            with self.subTest(name):
                jobs = [self.start("--nproc-per-node=2", script, env=self.variables(name, **own(str(node))),
                                   prefix=("ip", "netns", "exec", self.hosts[node], "sh", "-c",
                                           f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh")) for node in range(2)]
                results = [job.finish() for job in jobs]
                self.assertEqual([code for code, _, _ in results], [0, 0], results)
                envs = [parse_env(line) for _, out, _ in results for line in out.splitlines()]
                self.assertEqual(sorted((env["RANK"], env["GROUP_RANK"], env["WORLD_SIZE"]) for env in envs),
                                 [("0", "0", "4"), ("1", "0", "4"), ("2", "1", "4"), ("3", "1", "4")])
                self.assertEqual({env["MASTER_ADDR"] for env in envs} - {FIRST, NAME}, set())
        print(f"{len(WORLDS)} platforms formed a world of two nodes", flush=True)


class Refusals(WithFlux):
    def test_each_other_is_refused_in_one_line_with_what_to_type(self):
        for name, wanted in REFUSALS.items():
            with self.subTest(name):
                self.refused(2, [wanted], "--nproc-per-node=2", "/bin/true", env=self.variables(name))
        print(f"{len(REFUSALS)} refused", flush=True)

    def test_flux_that_does_not_answer(self):
        self.refused(2, ["nothing names the first host", "--env=MASTER_ADDR=HOST"], "/bin/true", env=recorded("flux", PATH="/nowhere"))


if __name__ == "__main__":
    main()
