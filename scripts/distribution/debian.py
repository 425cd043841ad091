"""Asks dpkg which Debian package a file is of. A folder with arm64's packages beside the system has
a database of its own."""

import dataclasses
import functools
import os
import pathlib
import re
import subprocess

from .linked import Unusable

FIELDS = ("binary:Package", "Version", "source:Package", "source:Version", "Architecture")
# Its headers declare the kernel's interface. No code of it gets into a program.
NO_CODE = ("linux-libc-dev", "linux-libc-dev-arm64-cross")
ID = re.compile(r"^ID=[\"']?([\w.-]+)", re.MULTILINE)
COMMON = re.compile(r"/usr/share/common-licenses/([\w.+-]*\w)")


@dataclasses.dataclass
class Component:
    """A Debian source package of which the programs have a part. `packages` has the binary
    packages' names with versions, `files` the names of archives and of folders of headers."""

    name: str
    version: str
    packages: set
    archives: set
    texts: set  # of the files "copyright"


def system_id(sysroot):
    """Returns ID of os-release. A sysroot without that file has packages of this system's own
    sources."""
    for root in (sysroot, pathlib.Path("/")):
        for name in ("etc/os-release", "usr/lib/os-release"):
            if (root / name).is_file():
                found = ID.search((root / name).read_text())
                return found[1] if found else "linux"
    return "linux"  # by os-release(5)


def variants(path):
    """Returns the names under which dpkg may know a path, since /lib is /usr/lib today."""
    path = os.path.normpath(path)
    return [path, path[len("/usr"):] if path.startswith("/usr/lib") else "/usr" + path]


def query(sysroot, *words):
    database = ["--admindir", str(sysroot / "var/lib/dpkg")]
    try:
        done = subprocess.run(["dpkg-query", *database, *words], env=os.environ | {"LC_ALL": "C"},
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except FileNotFoundError:
        raise Unusable("no dpkg-query here: the libraries are those of Debian's packages") from None
    return done.stdout


def owners(sysroot, paths):
    """Returns {path: binary package} of paths below `sysroot`, which they do not name."""
    wanted = {name: path for path in paths for name in variants(path)}
    found = {}
    for line in query(sysroot, "--search", *sorted(wanted)).splitlines() if wanted else ():
        packages, _, name = line.rpartition(": ")
        if name in wanted and not packages.startswith("diversion by"):
            found[wanted[name]] = packages.split(", ")[0]
    lost = sorted(set(paths) - set(found))
    if lost:
        raise Unusable(f"{lost[0]}: no Debian package has this file, so its licence is not known")
    return found


def describe(sysroot, packages):
    """Returns {binary package: its FIELDS}."""
    form = "\\t".join(f"${{{field}}}" for field in FIELDS) + "\\n"
    said = query(sysroot, "--show", f"--showformat={form}", *sorted(packages))
    rows = [line.split("\t") for line in said.splitlines()]
    return {row[0]: dict(zip(FIELDS, row)) for row in rows}


@functools.cache
def copyright_of(sysroot, package):
    path = sysroot / "usr/share/doc" / package.partition(":")[0] / "copyright"
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}; the notice must travel with the code") from None


def roots(path, sysroot):
    """Returns the root that has the path, and the path below it. The cross compiler's own libraries
    lie on the system, the others in `sysroot`."""
    below = os.path.relpath(path, sysroot)
    if str(sysroot) != "/" and not below.startswith(".."):
        return sysroot, "/" + below
    return pathlib.Path("/"), path


def components(paths, sysroot):
    """Returns {path: Component}; paths of one source package share one. `paths` are absolute."""
    by_root = {}
    for path in paths:
        root, below = roots(path, sysroot)
        by_root.setdefault(root, {})[below] = path
    known, of_path = {}, {}
    for root, below in by_root.items():
        package_of = owners(root, list(below))
        facts = describe(root, set(package_of.values()))
        for name, package in sorted(package_of.items()):
            if package.partition(":")[0] in NO_CODE:
                continue
            fact = facts.get(package) or facts[package.partition(":")[0]]
            key = fact["source:Package"], fact["source:Version"]
            one = known.setdefault(key, Component(*key, set(), set(), set()))
            one.packages.add(f"{package.partition(':')[0]} {fact['Version']}")
            one.texts.add(copyright_of(root, package))
            if name.endswith((".a", ".o")):
                one.archives.add(os.path.basename(name))
            of_path[below[name]] = one
    return of_path


def common_licenses(texts):
    """Returns {name: text} of the licences that the texts name by Debian's folder of them."""
    names = {name for text in texts for name in COMMON.findall(text)}
    folder = pathlib.Path("/usr/share/common-licenses")
    return {name: (folder / name).read_text() for name in sorted(names)
            if (folder / name).is_file()}
