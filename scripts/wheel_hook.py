"""The facts about the wheel that hatchling needs beside pyproject.toml: the program, and where it
runs.

DDPRUN names the program (default build/bin/ddprun). It is static, so one wheel fits each libc and
each Python.
"""

import os
import pathlib

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TAG = "py3-none-manylinux_2_17_x86_64.musllinux_1_1_x86_64"


class WheelHook(BuildHookInterface):
    def initialize(self, version, build_data):
        program = pathlib.Path(self.root, os.environ.get("DDPRUN", "build/bin/ddprun"))
        if not program.exists():
            raise FileNotFoundError(
                f"{program} is not built: ./quickstart --launcher-only builds it"
            )
        if b"ld-linux" in program.read_bytes()[:4096]:
            raise ValueError(
                f"{program} is linked dynamically (a build with a sanitizer?): "
                "the wheel promises that it is not"
            )
        build_data["tag"] = TAG
        build_data["pure_python"] = False
        build_data["shared_scripts"][str(program)] = "ddprun"
