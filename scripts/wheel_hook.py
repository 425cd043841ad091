"""The facts about the wheel that hatchling needs beside pyproject.toml. These are the programs,
their machine and their notices, and the page that an index shows.

DDPRUN names the program ddprun (default build/bin/ddprun). ddprund and ddpctl lie beside it, and
notices and SBOM in share/ of the same build. The programs are static, so one wheel fits each libc
and each Python.
"""

import os
import pathlib
import sys

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from distribution import elf, page  # noqa: E402
from distribution.elf import PROGRAMS  # noqa: E402

# glibc and musl of these versions are older than any Python that the wheel takes.
TAG = "py3-none-manylinux_2_17_{0}.musllinux_1_1_{0}"


def existing(path):
    if not path.exists():
        raise FileNotFoundError(f"{path} is not built: "
            "cmake --build build --target installable ddprun_sbom")
    return str(path)


def static_machine(path):
    content = elf.content(existing(path))
    if not elf.is_static(content):
        raise ValueError(
            f"{path} is linked dynamically (a build with a sanitizer?): "
            "the wheel promises that it is not"
        )
    return elf.machine(content)


class WheelHook(BuildHookInterface):
    def initialize(self, version, build_data):
        ddprun = pathlib.Path(self.root, os.environ.get("DDPRUN", "build/bin/ddprun"))
        share = ddprun.parents[1] / "share"
        programs = [ddprun.parent / name for name in PROGRAMS]
        machines = {static_machine(program) for program in programs}
        if len(machines) != 1:
            raise ValueError(f"{ddprun.parent} has programs of several machines")
        build_data["tag"] = TAG.format(machines.pop().wheel)
        build_data["pure_python"] = False
        for program in programs:
            build_data["shared_scripts"][str(program)] = program.name
        build_data["sbom_files"].append(existing(share / "ddprun.spdx.json"))
        folder = f"{self.metadata.core.name}-{self.metadata.version}.dist-info/licenses"
        notices = existing(share / "linked-libraries")
        build_data["force_include"][notices] = f"{folder}/linked-libraries"


class PageHook(MetadataHookInterface):
    """The README as an index shows it, where a link into the project's tree is dead."""

    def update(self, metadata):
        text = pathlib.Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": page.without_relative_links(text),
        }
