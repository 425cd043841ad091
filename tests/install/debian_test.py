#!/usr/bin/env python3
"""The Debian packages: what is in them, and that they come and go on a clean Debian 11 and 12.

DDPRUN_DEBIAN names a folder of clean systems, made by debootstrap and named by release (bullseye,
bookworm).
"""

import os
import pathlib
import shutil
import subprocess

from support import BUILD, FolderTest, built, made, run, run_tests_or_make, tool

SYSTEMS = pathlib.Path(os.environ.get("DDPRUN_DEBIAN", "/nonexistent"))
# Lists every file of the system but the logs and caches of dpkg and its friends.
LIST = "find / -xdev -not -path '/proc/*' -not -path '/sys/*' -not -path '/var/lib/dpkg/*' -not -path '/var/log/*' -not -path '/var/cache/*' | sort"
TRAIN = "#!/bin/sh\necho rank $RANK of $WORLD_SIZE\n"


def needed():
    built(BUILD / "share" / "ddprun.1", BUILD / "share" / "ddprund.8", BUILD / "worker/startup/libddprun_worker_startup.a",
          BUILD / "worker/data/libddprun_worker_data.a", BUILD / "share" / "ddprun.spdx.json")


def make_packages(folder):
    """With gzip, for its speed; users get xz."""
    needed()
    run("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", folder, "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip", cwd=folder)


class Packages(FolderTest):
    def setUp(self):
        super().setUp()
        needed()
        self.packages = {path.name.split("_")[0]: path for path in made(make_packages).glob("*.deb")}
        self.assertEqual(sorted(self.packages), ["ddprun", "ddprun-dev"])

    def field(self, package, name):
        return run("dpkg-deb", "-f", self.packages[package], name).strip()

    def listed(self, package):
        lines = run("dpkg-deb", "-c", self.packages[package]).splitlines()
        return {line.split()[5].lstrip("."): line.split()[:2] for line in lines if not line.startswith("d")}

    def test_the_launcher_depends_on_nothing(self):
        self.assertEqual(self.field("ddprun", "Depends"), "")
        self.assertEqual(self.field("ddprun", "Suggests"), "python3")
        self.assertEqual(self.field("ddprun", "Architecture"), "amd64")

    def test_the_engine_depends_on_what_each_program_links(self):
        self.assertRegex(self.field("ddprun-dev", "Depends"), r"^libdeflate-dev, g\+\+ \(>= 4:\d+\)$")

    def test_has_each_file_where_debian_wants_it(self):
        files = self.listed("ddprun")
        for path in ("/usr/bin/ddprun", "/usr/bin/ddprun-launch", "/usr/bin/ddprund", "/usr/bin/ddpctl", "/usr/share/man/man8/ddprund.8.gz", "/usr/share/man/man1/ddpctl.1.gz",
                     "/usr/lib/systemd/system/ddprund.service", "/usr/share/doc/ddprun/examples/ddprund.json", "/usr/share/man/man1/ddprun.1.gz", "/usr/share/doc/ddprun/copyright", "/usr/share/doc/ddprun/linked-libraries.gz", "/usr/share/doc/ddprun/ddprun.spdx.json.gz",
                     "/usr/share/doc/ddprun/changelog.gz", "/usr/share/zsh/vendor-completions/_ddprun",
                     "/usr/share/bash-completion/completions/ddprun", "/usr/share/fish/vendor_completions.d/ddprun.fish"):
            self.assertIn(path, files)
        self.assertEqual({owner for _, owner in files.values()}, {"root/root"})
        engine = self.listed("ddprun-dev")
        self.assertIn("/usr/lib/cmake/ddprun/ddprun-config.cmake", engine)
        self.assertIn("/usr/include/ddprun/data_parallel.h", engine)

    def test_lintian_knows_two_exceptions_and_no_more(self):
        said = run(tool("lintian"), "--fail-on", "error,warning", *self.packages.values())
        self.assertNotRegex(said, r"(?m)^[EW]: ")

    def system(self, release):
        """A copy of a clean system, gone with the test."""
        clean = SYSTEMS / release
        if not clean.is_dir():
            self.skipTest(f"no clean {release} here: DDPRUN_DEBIAN={SYSTEMS} has none (debootstrap --variant=minbase)")
        if os.geteuid() != 0:
            self.skipTest("chroot needs root")
        root = self.folder / release
        subprocess.run(["cp", "-a", "--reflink=auto", clean, root], check=True)
        for package in self.packages.values():
            shutil.copy(package, root / "tmp")
        (root / "tmp" / "train.sh").write_text(TRAIN)
        (root / "tmp" / "train.sh").chmod(0o755)
        return root

    def come_and_go(self, release):
        root = self.system(release)
        wants = root / "etc/systemd/system/multi-user.target.wants"
        wants.mkdir(parents=True, exist_ok=True)
        before = run("chroot", root, "sh", "-c", LIST)
        run("chroot", root, "dpkg", "-i", f"/tmp/{self.packages['ddprun'].name}")
        # ddprun asks /proc about itself and its workers.
        inside = ["unshare", "-mpf", "sh", "-c", f"mount -t proc proc {root}/proc && exec chroot {root} \"$@\"", "sh"]
        self.assertIn("--config=/etc/ddprun/ddprund.json", (root / "usr/lib/systemd/system/ddprund.service").read_text())
        for name in ("ddprund", "ddpctl"):
            self.assertIn(f"{name} 0.", run("chroot", root, name, "--version"))
        self.assertIn("rank 1 of 2\n", run(*inside, "ddprun", "--nproc-per-node=2", "--log-dir=/dev/null", "/tmp/train.sh"))
        # As `systemctl enable` does, which is not in these systems.
        (wants / "ddprund.service").symlink_to("/usr/lib/systemd/system/ddprund.service")
        run("chroot", root, "dpkg", "--purge", "ddprun")
        self.assertEqual(run("chroot", root, "sh", "-c", LIST), before)

    def test_comes_and_goes_on_debian_11(self):
        self.come_and_go("bullseye")

    def test_comes_and_goes_on_debian_12(self):
        self.come_and_go("bookworm")


if __name__ == "__main__":
    run_tests_or_make(make_packages)
