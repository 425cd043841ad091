"""Packs the kit: builds the programs, strips and looks at them, and writes one archive."""

import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

from kit import elf, manifest
from kit.machine import ROOT

MOST_BYTES = 40 << 20
NAME = "ddprun-gpu-kit"
# Built for the kit. The first one knows no torch.
PROGRAMS = ("ddprun", "mnist", "bench-step", "bench-optimizers", "bench-costs",
            "worker_nccl_test", "worker_gpu_test", "parity_trainer", "join_zero_trainer",
            "collectives_program", "gpu_faults")
# Taken as they are, by their paths in the project.
FILES = ("scripts/gpu_kit", "scripts/kit/*.py", "scripts/kit/stages/*.py", "docs/gpu.md",
         "LICENSE", "bench/step", "bench/step_torch.py", "bench/step_models.py",
         "bench/recovery_jobs.py", "bench/processes.py", "bench/programs.py",
         "bench/optimizers_torch.py", "bench/costs_torch.py",
         "tests/worker/python_parity/parity_trainer.py",
         "tests/worker/python_parity/join_zero_trainer.py",
         "tests/worker/python_parity/collectives_program.py", "examples/pytorch/ddp_mnist.py",
         "examples/data/mnist_5k/*", "tests/examples/digits.py")


class Unfit(Exception):
    """The kit cannot be made, or would not run on the machine with the GPU."""


def output(*command):
    """Returns what the command prints. Its failure ends the packing."""
    try:
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True,
                              stdin=subprocess.DEVNULL, check=False, cwd=ROOT)
    except OSError as error:
        raise Unfit(f"{command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        raise Unfit(f"{command[0]} ended with {done.returncode}\n{done.stdout[-2000:]}")
    return done.stdout


def build():
    """Brings the programs of build/ up to date."""
    jobs = output("bash", "-c", ". scripts/common.sh; build_jobs").strip()
    output("cmake", "--preset", "release", "-DDDPRUN_BUILD_WORKER=ON", "-DDDPRUN_BUILD_TESTS=ON")
    output("cmake", "--build", "build", "-j", jobs, "--target", *PROGRAMS)


def take_program(source, target):
    """Copies and strips a program, if it can run where the GPU is."""
    if not os.access(source, os.X_OK):
        raise Unfit(f"{source} is not there; without --bin it is built first")
    shutil.copy(source, target)
    output("strip", target)
    faults = elf.faults(output("readelf", "--dynamic", "--wide", target),
                        output("readelf", "--version-info", "--wide", target))
    if faults:
        raise Unfit(f"{target.name} {'; '.join(faults)}")


def torch_version(program):
    """The version of the torch that the program was linked with: its RUNPATH leads there."""
    for path in elf.run_path(output("readelf", "--dynamic", "--wide", program)):
        file = pathlib.Path(path).parent / "version.py"
        if file.exists():
            return elf.version_of(file.read_text(encoding="utf-8"))
    return None


def take_files(folder):
    for pattern in FILES:
        found = sorted(ROOT.glob(pattern))
        if not found:
            raise Unfit(f"{pattern} is not there")
        for path in found:
            target = folder / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


def write_archive(folder, path):
    """Writes it beside its place first, so that no half of one is taken for a kit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    with tarfile.open(draft, "w:xz", preset=1) as archive:
        archive.add(folder, NAME)
    size = draft.stat().st_size
    if size > MOST_BYTES:
        draft.unlink()
        raise Unfit(f"the archive has {size} bytes; {MOST_BYTES} are accepted")
    draft.replace(path)
    return size


def main(options):
    if not options.is_built:
        build()
    with tempfile.TemporaryDirectory(prefix="gpu_kit_") as folder:
        kit = pathlib.Path(folder)
        (kit / "build/bin").mkdir(parents=True)
        for name in PROGRAMS:
            take_program(pathlib.Path(options.bin) / name, kit / "build/bin" / name)
        take_files(kit)
        manifest.write(kit, manifest.commit(ROOT), torch_version(kit / "build/bin/mnist"))
        size = write_archive(kit, pathlib.Path(os.path.abspath(options.out)))
    print(f"{options.out}: {size / (1 << 20):.1f} MiB, {len(PROGRAMS)} programs")
    return 0
