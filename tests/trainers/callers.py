"""Programs that start a job from Python, in the forms that are in use:

  callers.py notebook|run|elastic_launch [--fail]

A failure is printed by what a caller can read of it.
"""

import os
import socket
import sys

import launched

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launched.py")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def notebook(words):
    """accelerate's way for notebooks."""
    from accelerate import notebook_launcher

    notebook_launcher(launched.train, ("accelerate", "--fail" in words), num_processes=2,
                      use_port=str(free_port()))


def run(words):
    """torchtune's: torchrun's parser and run()."""
    from torch.distributed.run import get_args_parser
    from torch.distributed.run import run as torchrun

    torchrun(get_args_parser().parse_args(["--standalone", "--nproc-per-node=2", SCRIPT, "plain", *words]))


def elastic_launch(words):
    """Flyte's and fairchem's: a function, its results by rank."""
    from torch.distributed.launcher import LaunchConfig
    from torch.distributed.launcher import elastic_launch as launch

    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", run_id="job", max_restarts=0)
    results = launch(config, launched.train)("plain", "--fail" in words)
    if sorted(results) != [0, 1] or len(set(results.values())) != 1:
        raise RuntimeError(f"expected one loss of two ranks: {results}")


def main():
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    form = {"notebook": notebook, "run": run, "elastic_launch": elastic_launch}[sys.argv[1]]
    try:
        form(sys.argv[2:])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        message = failure.error_file_data["message"]
        words = message if isinstance(message, str) else message["message"]
        print(f"failed: rank {rank}, exit code {failure.exitcode}, {words}, "
              f"error file {os.path.basename(failure.error_file)}", flush=True)
        raise


if __name__ == "__main__":
    main()
