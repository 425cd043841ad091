"""Looks at the files of a release as its users and their platform team would. Each check returns
the reasons against the release, one a line, or raises NotRun."""

import gzip
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile

from . import build, contents, elf, linked, page

TOOLS = f"{build.ROOT / '.venv-wheel/bin'}{os.pathsep}{os.environ.get('PATH', '')}"
SUMS = "SHA256SUMS"
# The folders of programs, notices and SBOM in wheel, package and tarball.
PLACES = ("bin", "scripts", "ddprun", "licenses", "sboms")


class NotRun(Exception):
    """A check could not be made. Its text says why."""


def tool(name):
    found = shutil.which(name, path=TOOLS)
    if found is None:
        raise NotRun(f"no {name} here")
    return found


def reasons(*command, expect="", **more):
    """Runs a tool. Returns the last lines that it printed if it fails, or does not say `expect`."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    said = done.stdout.splitlines()
    if done.returncode == 0 and expect in " ".join(done.stdout.split()):
        return []
    return said[-5:] or [f"exit code {done.returncode} of {command[0]}"]


def sums(folder):
    """Returns the text of SHA256SUMS for the files of a folder."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
                   for path in files)


def sums_match(folder):
    return reasons("sha256sum", "--check", "--strict", "--quiet", SUMS, cwd=folder)


def emulated(machine):
    """Returns the words that go before a program of the machine."""
    return [] if os.uname().machine == machine.wheel else [tool(f"qemu-{machine.wheel}-static")]


def says_the_version(program, machine):
    return reasons(*emulated(machine), program, "--version", expect=build.version())


def is_for(program, machine):
    content = elf.content(program)
    found = elf.machine(content)
    lines = [] if found == machine else [f"{program.name} is for {found.wheel}"]
    return lines if elf.is_static(content) else [*lines, f"{program.name} is linked dynamically"]


def has_no_path(program, folders):
    """The builder's folders are in no program, or two folders would give two programs."""
    content = elf.content(program)
    return [f"{program.name} has the path {folder}" for folder in folders
            if f"{folder}/".encode() in content]


def has_no_way_to_sources(program):
    """ccache writes ways from the build's folder to headers, and another folder has another way."""
    rooms = [path.parent.name for path in sorted(build.ROOT.glob("*/CMakeLists.txt"))]
    ways = [f"../{folder}/" for folder in (*rooms, build.SYSROOT.name)]
    content = elf.content(program)
    return [f"{program.name} has the way {way}: built through ccache?" for way in ways
            if way.encode() in content]


def page_stands_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    links = page.relative_links(text.partition("\n\n")[2])
    return [f"the page links to {link}, which an index does not have" for link in links]


def document_is_valid(document):
    return reasons(tool("pyspdxtools"), "--infile", document, "--version", "SPDX-2.3")


def has_each_library(document, tree, program):
    sysroot = build.sysroot_of(tree)
    return contents.lacking(document, contents.archives_inside(tree, program), sysroot)


def has_each_header(document, tree, program):
    sysroot = build.sysroot_of(tree)
    rooms = contents.rooms_of(tree, program)
    return contents.lacking(document, contents.recorded_headers(tree, rooms, sysroot), sysroot)


def is_looked_at(path):
    """A completion may have the name of a program; it lies in another folder."""
    return os.path.basename(os.path.dirname(path)) in PLACES


def wheel_files(path):
    with zipfile.ZipFile(path) as archive:
        return {os.path.basename(name): archive.read(name)
                for name in archive.namelist() if is_looked_at(name)}


def tar_files(stream):
    with tarfile.open(fileobj=stream) as archive:
        return {os.path.basename(one.name): archive.extractfile(one).read()
                for one in archive.getmembers() if one.isfile() and is_looked_at(one.name)}


def package_files(path):
    packed = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], check=True,
                            stdout=subprocess.PIPE).stdout
    files = tar_files(io.BytesIO(packed))
    return {name.removesuffix(".gz"): gzip.decompress(content) if name.endswith(".gz") else content
            for name, content in files.items()}


def tarball_files(path):
    return tar_files(io.BytesIO(lzma.decompress(path.read_bytes())))


FILES_OF = {".whl": wheel_files, ".deb": package_files, ".xz": tarball_files}


def holds_what_was_built(path, tree):
    """The archive has each program as it was built, the SBOM that names it, and the notices."""
    files = FILES_OF[path.suffix](path)
    expected = {name: tree / "bin" / name for name in elf.PROGRAMS}
    expected |= {name: tree / "share" / name for name in ("ddprun.spdx.json", "linked-libraries")}
    lines = [f"{path.name} has no {name}, or another one" for name, built in expected.items()
             if files.get(name) != built.read_bytes()]
    named = {one["fileName"]: one["checksums"] for one in json.loads(
        (tree / "share/ddprun.spdx.json").read_text())["files"]}
    for name in elf.PROGRAMS:
        digest = hashlib.sha256(files.get(name, b"")).hexdigest()
        if digest not in [one["checksumValue"] for one in named[f"./bin/{name}"]]:
            lines.append(f"the SBOM names another {name} than that of {path.name}")
    return lines


def lintian(path):
    with tempfile.TemporaryDirectory() as folder:
        return reasons(tool("lintian"), "--fail-on", "error,warning", path,
                       env=os.environ | {"TMPDIR": folder})


def of_programs(tree, machine):
    folders = sorted({str(build.ROOT), str(tree)})
    for name in elf.PROGRAMS:
        program = tree / "bin" / name
        yield f"{name} says its version", lambda program=program: says_the_version(program, machine)
        yield f"{name} is static, for {machine.wheel}", \
            lambda program=program: is_for(program, machine)
        yield f"{name} has no path of its builder", \
            lambda program=program: [*has_no_path(program, folders),
                                     *has_no_way_to_sources(program)]


def of_contents(out, tree, architecture):
    document = out / f"{build.name_of(architecture)}.spdx.json"
    body = json.loads(document.read_text())
    yield f"SBOM is valid SPDX 2.3: {document.name}", lambda: document_is_valid(document)
    for name in elf.PROGRAMS:
        yield f"SBOM has each library that nm finds in {name}", \
            lambda name=name: has_each_library(body, tree, name)
        yield f"SBOM has each library whose headers are in {name}", \
            lambda name=name: has_each_header(body, tree, name)


def of_archives(out, tree, architecture):
    machine = build.MACHINE[architecture]
    wheel = next(out.glob(f"*_{machine.wheel}.whl"))
    package = next(out.glob(f"*_{architecture}.deb"))
    for path in wheel, package, out / f"{build.name_of(architecture)}.tar.xz":
        yield f"holds what was built: {path.name}", \
            lambda path=path: holds_what_was_built(path, tree)
    yield f"twine check --strict: {wheel.name}", \
        lambda: reasons(tool("twine"), "check", "--strict", wheel)
    yield f"auditwheel show: {wheel.name}", \
        lambda: reasons(tool("auditwheel"), "show", wheel,
                        expect="requires no external shared libraries")
    yield f"no relative link on the page of {wheel.name}", lambda: page_stands_alone(wheel)
    yield f"lintian: {package.name}", lambda: lintian(package)


def all_checks(out, trees):
    """Yields (what, check) for a release. `trees` are {architecture: its build's folder}."""
    yield "checksums", lambda: sums_match(out)
    for architecture, tree in trees.items():
        yield from of_programs(tree, build.MACHINE[architecture])
        yield from of_contents(out, tree, architecture)
        yield from of_archives(out, tree, architecture)


def run(checks, say):
    """Runs each, with one line for it, and returns how many (passed, failed, were not run)."""
    counts = {"ok": 0, "FAILED": 0, "not run": 0}
    for what, check in checks:
        try:
            lines = check()
            outcome = "FAILED" if lines else "ok"
        except NotRun as reason:
            lines, outcome = [str(reason)], "not run"
        except linked.Unusable as error:
            lines, outcome = str(error).splitlines(), "FAILED"
        counts[outcome] += 1
        say(f"{outcome:8} {what}" + "".join(f"\n         {line}" for line in lines))
    return tuple(counts.values())
