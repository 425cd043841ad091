"""Builds the launcher's half for one architecture, and makes its files of a release."""

import lzma
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile

from . import elf
from .linked import Unusable

ROOT = pathlib.Path(__file__).resolve().parents[2]
SYSROOT = ROOT / "out/sysroot-arm64"  # as cmake/arm64.cmake has it
# The programs that building for arm64 needs, and their packages.
CROSS_TOOLS = {"aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
               "qemu-aarch64-static": "qemu-user-static"}
MACHINE = {one.debian: one for one in elf.MACHINES}


def run(*command, log=None, **more):
    """Runs it. Its output goes to the file `log`, whose end the error shows, or is returned."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", **more)
    except FileNotFoundError:
        raise Unusable(f"no {words[0]} here") from None
    if log:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(done.stdout)
    if done.returncode:
        raise Unusable(f"exit code {done.returncode} of {' '.join(words)}\n{done.stdout[-3000:]}")
    return done.stdout


def version():
    return re.search(r"project\(ddprun VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


def commit_time():
    """Returns the seconds since 1970 of the commit, which all files of a release get as theirs."""
    return run("git", "-C", ROOT, "log", "-1", "--format=%ct").strip()


def want_equal_bytes():
    """Gives all that is built from now on the time of the commit, and bypasses ccache. That writes
    headers' paths from the build's folder, so two folders would give two programs."""
    os.environ["SOURCE_DATE_EPOCH"] = commit_time()
    os.environ["CCACHE_DISABLE"] = "1"


def changed_files():
    return run("git", "-C", ROOT, "status", "--porcelain").splitlines()


def forget(architecture, folder):
    """Removes what an earlier call left, since Debian's packages and the time of the commit may
    have changed."""
    shutil.rmtree(folder / f"build-{architecture}", ignore_errors=True)
    if architecture == "arm64":
        shutil.rmtree(SYSROOT, ignore_errors=True)


def configure_and_build(architecture, folder):
    """Builds what is installed, in `folder`/build-ARCHITECTURE, and returns that."""
    build = folder / f"build-{architecture}"
    configure = ["cmake", "--preset", "launcher-only", "-B", build]
    if architecture == "arm64":
        run(ROOT / "scripts/arm64", "sysroot", log=folder / "sysroot-arm64.log")
        configure.append(f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'cmake/arm64.cmake'}")
    run(*configure, cwd=ROOT, log=folder / f"configure-{architecture}.log")
    run("cmake", "--build", build, "--target", "installable", "ddprun_sbom",
        log=folder / f"{build.name}.log")
    return build


def make_wheel(build, out):
    environment = os.environ | {"DDPRUN": str(build / "bin/ddprun")}
    run(ROOT / "scripts/build_wheel.sh", out, env=environment)


def make_package(build, out):
    with tempfile.TemporaryDirectory() as folder:
        run("cpack", "--config", build / "CPackConfig.cmake", "-B", folder, cwd=folder)
        for path in pathlib.Path(folder).glob("*.deb"):
            shutil.copy(path, out)


def plain_entry(entry, seconds):
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mtime = seconds
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry


def make_tarball(build, out, name, seconds):
    """Packs the tree of `cmake --install`, whose unit names /usr/local/bin, with LICENSE."""
    with tempfile.TemporaryDirectory() as folder:
        run("cmake", "--install", build, "--prefix", "/usr/local", "--component", "ddprun",
            env=os.environ | {"DESTDIR": folder})
        tree = pathlib.Path(folder, "usr/local")
        shutil.copy(ROOT / "LICENSE", tree / "share/doc/ddprun")
        with lzma.open(out / f"{name}.tar.xz", "wb") as packed, \
                tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for path in sorted(tree.rglob("*")):
                archive.add(path, f"{name}/{path.relative_to(tree)}", recursive=False,
                            filter=lambda entry: plain_entry(entry, seconds))


def name_of(architecture):
    return f"ddprun-{version()}-linux-{MACHINE[architecture].wheel}"


def make(build, architecture, out):
    """Makes wheel, Debian package, tarball and SBOM of a build in `out`."""
    make_wheel(build, out)
    make_package(build, out)
    make_tarball(build, out, name_of(architecture), int(os.environ["SOURCE_DATE_EPOCH"]))
    shutil.copy(build / "share/ddprun.spdx.json", out / f"{name_of(architecture)}.spdx.json")


def sysroot_of(build):
    """Returns the folder in which the libraries of a build lie."""
    found = re.search(r"^DDPRUN_SYSROOT:PATH=(.+)$", (build / "CMakeCache.txt").read_text(), re.M)
    return pathlib.Path(found[1] if found else "/")
