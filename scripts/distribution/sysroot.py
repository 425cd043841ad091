"""Unpacks Debian's packages of another architecture into a folder, beside the system: none of the
system's packages changes. dpkg-query knows the folder as it knows a system."""

import os
import pathlib
import re
import shutil
import subprocess

from .build import run
from .linked import Unusable

# The libraries of the launcher; what tests link; two programs for workers to be.
PACKAGES = ("libc6-dev", "libgrpc++-dev", "libprotobuf-dev", "libboost1.81-dev",
            "nlohmann-json3-dev", "libspdlog-dev", "libfmt-dev", "libssl-dev", "zlib1g-dev",
            "libjemalloc-dev", "libgtest-dev", "libdeflate-dev", "libturbojpeg0-dev",
            "libpng-dev", "coreutils", "dash")
FIELD = re.compile(r"^(Package|Architecture|Multi-Arch): (.+)$", re.MULTILINE)
DONE = "packages"  # in the folder: what was unpacked, once all was


def apt(work, architecture, *words):
    """Runs apt-get with lists, cache and a database of packages of its own, which is empty."""
    options = {"APT::Architecture": architecture, "APT::Architectures": architecture,
               "APT::Sandbox::User": "root", "Dir::State": work / "state",
               "Dir::State::status": work / "status", "Dir::Cache": work / "cache",
               "Debug::NoLocking": "1"}
    words = [*words, *(f"-o{name}={value}" for name, value in options.items())]
    run("apt-get", "-qq", "-oAcquire::Retries=3", *words)


def download(work, architecture):
    """Returns the packages, and all that they need, as files in `work`."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    (work / "status").touch()
    apt(work, architecture, "update")
    apt(work, architecture, "install", "--download-only", "--yes", "--no-install-recommends",
        *PACKAGES)
    return sorted((work / "cache/archives").glob("*.deb"))


def record(package, folder):
    """Writes the package into the folder's database, as installed."""
    control = run("dpkg-deb", "--field", package)
    known = dict(FIELD.findall(control))
    name = known["Package"]
    if known.get("Multi-Arch") == "same":
        name += f":{known['Architecture']}"
    paths = "".join(f"{path}\n" for path in listed(package))
    (folder / "info" / f"{name}.list").write_text(paths)
    with open(folder / "status", "a") as status:
        status.write(f"{control}Status: install ok installed\n\n")


def listed(package):
    """Returns the paths in a package, absolute."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as made:
        said = subprocess.run(["tar", "--list"], stdin=made.stdout, check=True, text=True,
                              stdout=subprocess.PIPE).stdout
    return [line[1:].rstrip("/") or "/." for line in said.splitlines()]


def unpack(packages, root):
    database = root / "var/lib/dpkg"
    (database / "info").mkdir(parents=True)
    (database / "info/format").write_text("1\n")
    (root / "usr/lib").mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")  # as each Debian system has it today
    for package in packages:
        run("dpkg-deb", "--extract", package, root)
        record(package, database)
    (root / DONE).write_text("\n".join(PACKAGES))


def is_whole(root):
    return (root / DONE).exists() and (root / DONE).read_text() == "\n".join(PACKAGES)


def make(root, architecture, say):
    """Makes the folder, unless it is there with these packages."""
    if is_whole(root):
        return
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise Unusable(f"no {program} here: the libraries of {architecture} are Debian's")
    work = pathlib.Path(f"{root}.download")
    say(f"fetching Debian's libraries for {architecture}")
    packages = download(work, architecture)
    say(f"unpacking {len(packages)} packages into {os.path.relpath(root)}")
    shutil.rmtree(root, ignore_errors=True)
    unpack(packages, root)
    shutil.rmtree(work)
