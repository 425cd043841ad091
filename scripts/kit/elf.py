"""Judges by the text of readelf whether a program runs on the machine with the GPU. Pure: no
process, no file."""

import re

# The libraries that torch, NCCL, the CUDA runtime, libstdc++, libgcc and glibc bring.
LIBRARIES = re.compile(
    r"(libtorch(_cpu|_cuda)?|libc10(_cuda)?)\.so|libnccl\.so\.2|libcudart\.so\.13"
    r"|libstdc\+\+\.so\.6|libgcc_s\.so\.1"
    r"|(libc|libm)\.so\.6|libpthread\.so\.0|lib(dl|rt)\.so\.[12]|ld-linux-x86-64\.so\.2")
# The newest symbol versions that a program may want. They are those of Debian 12.
NEWEST = {"GLIBC": (2, 36), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13)}

NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
NEW_PATH = re.compile(r"\(RUNPATH\).*\[(.*)\]")
TORCH_VERSION = re.compile(r"^__version__ = '([^'+]+)", re.MULTILINE)
OLD_PATH = re.compile(r"\(RPATH\).*\[(.*)\]")
VERSION = re.compile(r"\b(GLIBC|GLIBCXX|CXXABI)_(\d+(?:\.\d+)*)\b")


def needed(dynamic):
    """The libraries of `readelf --dynamic`, as the loader looks for them."""
    return NEEDED.findall(dynamic)


def run_path(dynamic):
    """The folders of RUNPATH."""
    return [path for paths in NEW_PATH.findall(dynamic) for path in paths.split(":")]


def version_of(text):
    """The version in torch/version.py, without what stands behind a plus."""
    found = TORCH_VERSION.search(text)
    return found[1] if found else None


def versions(text):
    """{(name, numbers)} of the symbol versions of `readelf --version-info`."""
    return {(name, tuple(map(int, number.split(".")))) for name, number in VERSION.findall(text)}


def faults(dynamic, version_info):
    """Says why the program cannot be in the kit; nothing for a good one."""
    found = [f"needs {name}, which the machine may not have"
             for name in needed(dynamic) if not LIBRARIES.fullmatch(name)]
    found += [f"has RPATH {path}, which LD_LIBRARY_PATH does not override; RUNPATH is accepted"
              for path in OLD_PATH.findall(dynamic)]
    for name, numbers in sorted(versions(version_info)):
        if numbers > NEWEST[name]:
            text, most = (".".join(map(str, one)) for one in (numbers, NEWEST[name]))
            found.append(f"needs {name}_{text}; {name}_{most} is the newest that is accepted")
    return found
