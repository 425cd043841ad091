"""Finds what is inside a program that was linked statically. The linker's map names the archives
that it took. The sources of those rooms name the headers."""

import os
import pathlib
import re
import subprocess

# The first part of a map lists each member that was taken from an archive, and what wanted it.
TAKEN = re.compile(r"^(\S+\.a)\(\S+\)$", re.MULTILINE)
LOADED = re.compile(r"^LOAD (\S+)$", re.MULTILINE)
TAKEN_ENDS = "\nMemory Configuration\n"
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
# Types in nm's output of functions and variables that one archive alone defines.
STRONG = frozenset("TDBR")


class Unusable(Exception):
    """A file of the build is not there, or not as expected. Its text is one line for people."""


def read(path):
    try:
        return pathlib.Path(path).read_text(errors="replace")
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}; build the target first") from None


def taken_files(text):
    """Returns the archives and objects of a map as the linker names them."""
    taken, mark, _ = text.partition(TAKEN_ENDS)
    if not mark:
        raise Unusable("no map of GNU ld: it has no part 'Memory Configuration'")
    objects = [name for name in LOADED.findall(text) if name.endswith(".o")]
    return sorted({*TAKEN.findall(taken), *objects})


def split_by_owner(files, build):
    """Returns the files of the build as relative paths, and those of the system, which are
    absolute."""
    build = os.path.normpath(build)
    own, foreign = set(), set()
    for name in files:
        path = os.path.normpath(os.path.join(build, name))
        if path.startswith(build + os.sep):
            own.add(os.path.relpath(path, build))
        else:
            foreign.add(path)
    return sorted(own), sorted(foreign)


def rooms_of(own):
    """Returns the folders of the sources from which the build's own files were made."""
    return sorted({name.partition("/CMakeFiles/")[0] if "/CMakeFiles/" in name
                   else os.path.dirname(name) for name in own})


def included_headers(root, rooms, folders):
    """Returns the headers of the system that sources of the rooms include, by way of any header of
    the project. `folders` are the compiler's, in its order."""
    todo = [path for room in rooms for path in (root / room).glob("*.cc")]
    seen, found = set(todo), set()
    while todo:
        for bracket, name in INCLUDE.findall(read(todo.pop())):
            ours = root / name
            if bracket == '"' and ours not in seen and ours.exists():
                seen.add(ours)
                todo.append(ours)
            places = (os.path.join(folder, name) for folder in folders)
            if bracket == "<":
                found.update(path for path in list(places) if os.path.exists(path))
    return sorted(found)


def symbols(files):
    """Returns (file, name) of each strong symbol that the archives or programs define."""
    command = ["nm", "--print-file-name", "--defined-only", "--extern-only", *files]
    said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in said.stdout.splitlines():
        where, _, rest = line.partition(": " if ": " in line else " ")
        words = rest.split()
        if len(words) >= 2 and words[-2] in STRONG:
            yield where.partition(":")[0], words[-1]


def archives_by_symbols(program, archives):
    """Returns those of the archives of which the program has a symbol that no other archive
    defines. The program is one that still has its symbols."""
    owners = {}
    for archive, name in symbols(archives):
        owners.setdefault(name, set()).add(archive)
    present = {name for _, name in symbols([program])}
    return sorted({next(iter(found)) for name, found in owners.items()
                   if len(found) == 1 and name in present})
