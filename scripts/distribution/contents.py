"""Looks a second way for what is inside the programs of a build. nm finds archives by their
symbols. The compiler's records name each header that it read. An SBOM must have them all."""

import os
import pathlib
import re
import shutil
import tempfile

from . import debian, linked, spdx
from .build import run

# The libraries that a compiler adds unasked.
OF_THE_COMPILER = ("libc.a", "libstdc++.a", "libgcc.a", "libgcc_eh.a")


def link_command(build, program):
    """Returns the command that linked the program, as a line for a shell in the build's folder."""
    said = run("ninja", "-C", build, "--quiet", "-t", "commands", f"bin/{program}")
    for part in said.splitlines()[-1].split(" && "):
        if f" -o bin/{program} " in part:
            return part
    raise linked.Unusable(f"{build}: ninja does not know how {program} was linked")


def with_symbols(command, program, path):
    """Returns the command that links the same into another file, and leaves its symbols."""
    command = re.sub(r" -Wl,-Map=\S+", "", command).replace(" -s ", " ")
    return command.replace(f" -o bin/{program} ", f" -o {path} ")


def archives_of(command):
    """Returns the archives of others that the linker may take from."""
    compiler = command.split()[0]
    sysroot = re.findall(r"--sysroot=\S+", command)
    asked = [run(compiler, *sysroot, f"-print-file-name={name}").strip()
             for name in OF_THE_COMPILER]
    named = re.findall(r"(?<= )(/\S+\.a)(?= |$)", command)
    return sorted({os.path.normpath(path) for path in [*asked, *named]})


def archives_inside(build, program):
    """Links the program once more, with its symbols. Returns the archives that nm finds in it."""
    command = link_command(build, program)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, program)
        run("sh", "-c", with_symbols(command, program, path), cwd=build)
        return linked.archives_by_symbols(path, archives_of(command))


def recorded_headers(build, rooms, sysroot):
    """Returns the system's headers that the compiler read for sources of the rooms. The records are
    copied first, since ninja mends what it reads."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("build.ninja", "CMakeFiles/rules.ninja", ".ninja_deps"):
            to = pathlib.Path(folder, name)
            to.parent.mkdir(exist_ok=True)
            shutil.copy(build / name, to)
        said = run("ninja", "-C", folder, "--quiet", "-t", "deps")
    ours, found = False, set()
    system = ("/usr/", f"{sysroot}/usr/")
    places = tuple(f"{room}/CMakeFiles/" for room in rooms)
    for line in said.splitlines():
        if line and not line.startswith(" "):
            ours = line.startswith(places)
        elif ours and line.strip().startswith(system):
            found.add(os.path.normpath(line.strip()))
    return sorted(found)


def rooms_of(build, program):
    taken = linked.taken_files(linked.read(build / "share/maps" / f"{program}.map"))
    return linked.rooms_of(linked.split_by_owner(taken, build)[0])


def lacking(document, files, sysroot):
    """Returns a line for each source package that has one of the files, and that the SBOM lacks."""
    named = spdx.named_sources(document)
    lost = {}
    for path, part in sorted(debian.components(files, sysroot).items()):
        if part.name not in named:
            lost.setdefault(part.name, path)
    return [f"{path} is inside, and the SBOM does not name {name}" for name, path in lost.items()]
