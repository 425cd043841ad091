"""Builds unit tests for arm64 that need no library of arm64 but the compiler's own, and runs them
under qemu. These are the tests of what decides and of what adds: code without I/O."""

import concurrent.futures
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil

from .build import CROSS_TOOLS, ROOT, run
from .linked import Unusable

COMPILER, EMULATOR = CROSS_TOOLS
GTEST = pathlib.Path("/usr/src/googletest/googletest")  # of libgtest-dev
HEADERS = ("boost", "fmt")  # headers are the same for each machine
# The first is that of cmake/Rooms.cmake. Asio's own code is not among the sources.
FOR_ARM64 = ("-fsigned-char", "-UBOOST_ASIO_SEPARATE_COMPILATION")
SOURCES = ("base/assert.cc", "base/fmt.cc", "base/limit_hint.cc", "base/number_ranges.cc",
           "store/wire.cc", "store/waits.cc", "store/table.cc", "store/memory_bound.cc",
           "rendezvous/core/*.cc", "agent/core/lifecycle.cc", "agent/core/exit_*.cc",
           "worker/collective/core/collective.cc", "worker/collective/core/parts.cc",
           "worker/collective/core/record_file.cc", "worker/collective/kernels/*.cc",
           "tests/store/wire_test.cc", "tests/store/waits_test.cc", "tests/store/table_test.cc",
           "tests/store/memory_bound_test.cc", "tests/rendezvous/core/membership_test.cc",
           "tests/rendezvous/core/seating_test.cc", "tests/rendezvous/core/restart_budget_test.cc",
           "tests/agent/core/lifecycle_test.cc", "tests/agent/core/exit_code_test.cc",
           "tests/worker/collective/kernels/*_test.cc")
INCLUDED = re.compile(r'^#include "(.+)"$', re.MULTILINE)


def flags_of_sources(build):
    """Returns {source: the words that it is compiled with}. CMake's units name their sources."""
    path = build / "compile_commands.json"
    if not path.exists():
        raise Unusable(f"no {path}: cmake --preset release")
    found = {}
    for entry in json.loads(path.read_text()):
        words = shlex.split(entry["command"])[1:]
        unit = entry["file"]
        parts = INCLUDED.findall(pathlib.Path(unit).read_text()) if "/Unity/" in unit else [unit]
        found |= dict.fromkeys(parts, tuple(words[:words.index("-o")]))
    return found


def units(build, folder):
    """Yields (file, words): sources of one folder with the same words are compiled as one file."""
    words = flags_of_sources(build)
    sources = [str(path) for name in SOURCES for path in sorted(ROOT.glob(name))]
    lost = [source for source in sources if source not in words]
    if lost:
        raise Unusable(f"{build} does not build {lost[0]}: cmake --preset release "
                       "-DDDPRUN_BUILD_TESTS=ON")
    sources.sort(key=lambda source: (os.path.dirname(source), words[source]))
    groups = itertools.groupby(sources, lambda one: (os.path.dirname(one), words[one]))
    for number, ((_, flags), group) in enumerate(groups):
        path = folder / f"unit_{number}.cc"
        path.write_text("".join(f'#include "{source}"\n' for source in group))
        yield path, flags
    for name in "gtest-all", "gtest_main":
        yield GTEST / f"src/{name}.cc", ("-std=c++20", "-Og", f"-I{GTEST}")


def link_headers(folder):
    """Shows the compiler these headers of the machine, and none of its libc."""
    folder.mkdir(parents=True)
    for name in HEADERS:
        (folder / name).symlink_to(f"/usr/include/{name}")


def compiled(path, flags, folder):
    target = folder / f"{path.stem}.o"
    run(*(["ccache"] if shutil.which("ccache") else []), COMPILER, *flags, *FOR_ARM64,
        "-isystem", folder / "include", "-isystem", GTEST / "include", "-c", path, "-o", target)
    return target


def make(build, folder):
    """Builds the tests as one static program, and returns it."""
    shutil.rmtree(folder, ignore_errors=True)
    link_headers(folder / "include")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda unit: compiled(*unit, folder), units(build, folder)))
    program = folder / "cores_test"
    run(COMPILER, "-static", *objects, "-o", program)
    return program


def try_all(program, *words):
    """Runs the tests with words for them. Returns the last line that they say."""
    return run(EMULATOR, program, "--gtest_brief=1", *words).splitlines()[-1]
