#!/usr/bin/env python3
"""A release: what the programs contain is found, listed and valid, and faults are seen. Bytes of
two folders are compared by `scripts/release --twice`, which builds for minutes."""

import contextlib
import copy
import io
import json
import os
import pathlib
import shutil
import sys
import unittest
import unittest.mock
import zipfile

from support import BUILD, ROOT, FolderTest, built, run, run_tests

sys.path.insert(0, str(ROOT / "scripts"))

from distribution import build, checks, contents, debian, elf, emulated, linked, page, spdx  # noqa: E402

MAP = """Archive member included to satisfy reference by file (symbol)

store/libddprun_store.a(unity_0_cxx.cxx.o)
                              daemon/main.cc.o (f())
/usr/lib/gcc/x86_64-linux-gnu/12/../../../x86_64-linux-gnu/libc.a(exit.o)
                              store/libddprun_store.a(unity_0_cxx.cxx.o) (exit)

Memory Configuration

LOAD daemon/CMakeFiles/ddprund.dir/main.cc.o
LOAD /usr/lib/x86_64-linux-gnu/libnever_taken.a
 .text          0x1 0x2 /usr/lib/x86_64-linux-gnu/libnever_taken.a(x.o)
"""


def document():
    path = BUILD / "share" / "ddprun.spdx.json"
    built(path)
    return json.loads(path.read_text())


def without(body, name):
    """The document with one library forgotten."""
    body = copy.deepcopy(body)
    body["packages"] = [one for one in body["packages"] if one["name"] != name]
    return body


class Contents(FolderTest):
    def test_a_map_says_which_archives_the_linker_took(self):
        own, foreign = linked.split_by_owner(linked.taken_files(MAP), "/w/build")
        self.assertEqual(own, ["daemon/CMakeFiles/ddprund.dir/main.cc.o", "store/libddprun_store.a"])
        self.assertEqual(foreign, ["/usr/lib/x86_64-linux-gnu/libc.a"])
        self.assertEqual(linked.rooms_of(own), ["daemon", "store"])

    def test_a_file_that_is_no_map_is_refused(self):
        with self.assertRaisesRegex(linked.Unusable, "no map"):
            linked.taken_files("LOAD x.o\n")
        with self.assertRaisesRegex(linked.Unusable, "build the target first"):
            linked.read(self.folder / "none.map")

    def test_each_library_that_nm_finds_is_in_the_sbom(self):
        """nm looks at the program linked anew with its symbols, and never at the map. The daemon
        has the most; a release asks all three."""
        body = document()
        archives = contents.archives_inside(BUILD, "ddprund")
        names = {os.path.basename(path) for path in archives}
        self.assertEqual({"libgrpc.a", "libcrypto.a", "libc.a", "libjemalloc.a", "libstdc++.a"} - names, set())
        self.assertEqual(contents.lacking(body, archives, pathlib.Path("/")), [])
        # The planted fault: a library that the list forgot.
        for name in "grpc", "openssl", "glibc", "jemalloc":
            (line,) = contents.lacking(without(body, name), archives, pathlib.Path("/"))
            self.assertRegex(line, rf"^/\S+\.a is inside, and the SBOM does not name {name}$")

    def test_each_library_whose_headers_were_compiled_is_in_the_sbom(self):
        """By the compiler's records, which the list is not made of."""
        body = document()
        headers = contents.recorded_headers(BUILD, contents.rooms_of(BUILD, "ddprun"), pathlib.Path("/"))
        self.assertGreater(len(headers), 500)
        self.assertEqual(contents.lacking(body, headers, pathlib.Path("/")), [])
        (line,) = contents.lacking(without(body, "nlohmann-json3"), headers, pathlib.Path("/"))
        self.assertIn("does not name nlohmann-json3", line)

    def test_jemalloc_is_in_the_daemon_alone(self):
        links = {(one["spdxElementId"], one["relatedSpdxElement"]) for one in document()["relationships"]}
        self.assertIn(("SPDXRef-File-ddprund", "SPDXRef-Package-jemalloc"), links)
        self.assertNotIn(("SPDXRef-File-ddprun", "SPDXRef-Package-jemalloc"), links)

    def test_each_library_has_its_version_and_its_notices(self):
        body = document()
        notices = (BUILD / "share" / "linked-libraries").read_text()
        texts = {one["licenseId"]: one["extractedText"] for one in body["hasExtractedLicensingInfos"]}
        self.assertGreater(len(texts), 10)
        for one in body["packages"]:
            if one["name"] != "ddprun":
                self.assertGreater(len(texts[one["licenseDeclared"]]), 200, one["name"])
                self.assertIn(f"==== {one['name']} {one['versionInfo']}\n", notices)
                self.assertRegex(one["versionInfo"], r"^\d")

    def test_a_link_that_fails_shows_the_linkers_words(self):
        self.file("build.ninja", "rule link\n  command = : && sh -c 'echo no room >&2; exit 3' -o bin/ddprun x.o && :\nbuild bin/ddprun: link\n")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            counts = checks.run([("relink", lambda: contents.archives_inside(self.folder, "ddprun"))], print)
        self.assertEqual(counts, (0, 1, 0))
        self.assertRegex(out.getvalue(), r"(?s)FAILED   relink\n +exit code 3 of sh .*\n +no room\n")

    def test_a_file_of_no_package_is_named(self):
        path = self.file("libx.a", "")
        with self.assertRaisesRegex(linked.Unusable, "libx.a: no Debian package has this file"):
            debian.components([str(path)], pathlib.Path("/"))


class Document(FolderTest):
    def test_is_valid_spdx(self):
        built(BUILD / "share" / "ddprun.spdx.json")
        try:
            self.assertEqual(checks.document_is_valid(BUILD / "share" / "ddprun.spdx.json"), [])
        except checks.NotRun as reason:
            self.skipTest(str(reason))

    def test_an_invalid_one_is_seen(self):
        part = debian.Component("zlib", "1", {"zlib1g-dev 1"}, {"libz.a"}, {"free"})
        body = spdx.document("0.2.0", "amd64", "2026-01-01T00:00:00Z", {"ddprun": (b"x", [part])}, "debian")
        body["packages"][1]["licenseDeclared"] = "no licence at all"
        path = self.file("broken.spdx.json", json.dumps(body))
        try:
            self.assertNotEqual(checks.document_is_valid(path), [])
        except checks.NotRun as reason:
            self.skipTest(str(reason))

    def test_packages_are_of_the_system_that_has_them(self):
        part = debian.Component("zlib", "1", {"zlib1g-dev 1"}, {"libz.a"}, {"free"})
        for system, fields in (("ubuntu", {"supplier": "Organization: Ubuntu", "purl": "pkg:deb/ubuntu/zlib@1?arch=source"}),
                               ("another", {"supplier": "NOASSERTION", "purl": None})):
            one = spdx.document("0.2.0", "amd64", "2026-01-01T00:00:00Z", {"ddprun": (b"x", [part])}, system)["packages"][1]
            purl = one["externalRefs"][0]["referenceLocator"] if "externalRefs" in one else None
            self.assertEqual({"supplier": one["supplier"], "purl": purl}, fields)
        (self.folder / "etc").mkdir()
        self.file("etc/os-release", 'NAME="Ubuntu"\nVERSION_ID="24.04"\nID="ubuntu"\nID_LIKE=debian\n')
        self.assertEqual(debian.system_id(self.folder), "ubuntu")

    def test_equal_components_give_equal_bytes(self):
        part = debian.Component("zlib", "1", {"zlib1g-dev 1"}, {"libz.a"}, {"free"})
        again = debian.Component("zlib", "1", {"zlib1g-dev 1"}, {"libz.a"}, {"free"})
        one = spdx.document("0.2.0", "amd64", "2026-01-01T00:00:00Z", {"ddprun": (b"x", [part])}, "debian")
        two = spdx.document("0.2.0", "amd64", "2026-01-01T00:00:00Z", {"ddprun": (b"x", [again])}, "debian")
        self.assertEqual(json.dumps(one), json.dumps(two))
        other = spdx.document("0.2.0", "amd64", "2026-01-01T00:00:00Z", {"ddprun": (b"y", [part])}, "debian")
        self.assertNotEqual(one["documentNamespace"], other["documentNamespace"])


class Page(unittest.TestCase):
    def test_links_into_the_tree_become_paths(self):
        for text, expected in (
                ("[docs/gpu.md](docs/gpu.md#a) says", "docs/gpu.md says"),
                ("or [install](docs/install.md) it", "or install (docs/install.md) it"),
                ("[agent/](agent) | x", "agent/ | x"),
                ("[above](#above)", "above"),
                ("![a picture](docs/a.svg)", ""),
                ("[there](https://example.org/x)", "[there](https://example.org/x)"),
                ("```sh\nx[1](2)\n```", "```sh\nx[1](2)\n```")):
            self.assertEqual(page.without_relative_links(text), expected)

    def test_a_relative_link_is_seen(self):
        self.assertEqual(page.relative_links("[a](b.md) [c](https://d) ![e](f.svg)"), ["b.md", "f.svg"])
        readme = page.without_relative_links((ROOT / "README.md").read_text())
        self.assertEqual(page.relative_links(readme), [])


class Checks(FolderTest):
    def told(self, what):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            counts = checks.run(what, print)
        return counts, out.getvalue()

    def test_one_line_a_check_and_all_are_counted(self):
        def absent():
            raise checks.NotRun("no lintian here")
        counts, said = self.told([("a", list), ("b", lambda: ["is wrong"]), ("c", absent)])
        self.assertEqual(counts, (1, 1, 1))
        self.assertEqual(said.splitlines(), ["ok       a", "FAILED   b", "         is wrong", "not run  c", "         no lintian here"])

    def test_changed_bytes_are_seen(self):
        self.file("a.whl", "x")
        self.file(checks.SUMS, checks.sums(self.folder))
        self.assertEqual(checks.sums_match(self.folder), [])
        self.file("a.whl", "y")
        self.assertIn("a.whl: FAILED", checks.sums_match(self.folder))

    def test_a_path_of_the_builder_is_seen(self):
        program = self.file("ddprun", "at /home/me/ddprun/store/wire.cc")
        self.assertEqual(checks.has_no_path(program, ["/home/me/ddprun"]), ["ddprun has the path /home/me/ddprun"])
        self.assertEqual(checks.has_no_path(program, ["/work"]), [])

    def test_a_way_to_the_sources_is_seen(self):
        """Two folders gave two programs: ccache had written the way to a header."""
        for way, lines in (("../../base/x.h", ["ddprun has the way ../base/: built through ccache?"]),
                           ("../sysroot-arm64/usr/include/x", ["ddprun has the way ../sysroot-arm64/: built through ccache?"]),
                           ("base/x.h ../ssl/s3_lib.c", [])):
            self.assertEqual(checks.has_no_way_to_sources(self.file("ddprun", f"at {way}")), lines)
        with unittest.mock.patch.dict(os.environ):
            build.want_equal_bytes()
            self.assertEqual(os.environ["CCACHE_DISABLE"], "1")
            self.assertRegex(os.environ["SOURCE_DATE_EPOCH"], r"^\d+$")

    def test_the_programs_that_were_built_have_no_path_and_are_static(self):
        for name in elf.PROGRAMS:
            program = BUILD / "bin" / name
            built(program)
            self.assertEqual(checks.has_no_path(program, [str(ROOT), str(BUILD)]), [])
            own = next(one for one in elf.MACHINES if one.wheel == os.uname().machine)
            other = next(one for one in elf.MACHINES if one is not own)
            self.assertEqual(checks.is_for(program, own), [])
            self.assertEqual(checks.is_for(program, other), [f"{name} is for {own.wheel}"])

    def test_a_program_of_no_known_machine_is_refused(self):
        for content, line in ((b"#!/bin/sh\n", "no program of 64 bits"), (b"\x7fELF\x02\x01" + bytes(12) + b"\xf3\0", "of machine 243")):
            with self.assertRaisesRegex(elf.NoProgram, line):
                elf.machine(content)

    def test_an_archive_with_another_program_is_seen(self):
        for name in ("bin", "share"):
            (self.folder / "tree" / name).mkdir(parents=True)
        for name in elf.PROGRAMS:
            self.file(f"tree/bin/{name}", name)
        programs = {name: (name.encode(), []) for name in elf.PROGRAMS}
        body = spdx.document("0.2.0", "amd64", "2026-01-01T00:00:00Z", programs, "debian")
        self.file("tree/share/ddprun.spdx.json", json.dumps(body))
        self.file("tree/share/linked-libraries", "notices")
        wheel = self.folder / "x.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name in elf.PROGRAMS:
                archive.write(self.folder / "tree/bin" / name, f"x.data/scripts/{name}")
                archive.writestr(f"share/completions/{name}", "no program")
            archive.write(self.folder / "tree/share/linked-libraries", "x.dist-info/licenses/linked-libraries")
            archive.write(self.folder / "tree/share/ddprun.spdx.json", "x.dist-info/sboms/ddprun.spdx.json")
        self.assertEqual(checks.holds_what_was_built(wheel, self.folder / "tree"), [])
        self.file("tree/bin/ddpctl", "another")
        self.assertEqual(checks.holds_what_was_built(wheel, self.folder / "tree"), ["x.whl has no ddpctl, or another one"])


class Arm64(FolderTest):
    def test_all_parts_of_a_line_run_after_the_registration(self):
        with unittest.mock.patch.object(emulated, "register", lambda: "here=yes"):
            self.assertEqual(run("bash", "-c", emulated.registered("echo $here & echo $here; wait")), "yes\nyes\n")
        with unittest.mock.patch.object(emulated, "register", lambda: "false"):
            self.assertEqual(run("bash", "-c", emulated.registered("echo x & echo x; wait"), expect=1), "")

    def test_a_release_takes_nothing_of_an_earlier_one(self):
        for name in ("sysroot", "build-arm64", "build-amd64"):
            (self.folder / name).mkdir()
        with unittest.mock.patch.object(build, "SYSROOT", self.folder / "sysroot"):
            build.forget("amd64", self.folder)
            self.assertEqual(sorted(os.listdir(self.folder)), ["build-arm64", "sysroot"])
            build.forget("arm64", self.folder)
            self.assertEqual(os.listdir(self.folder), [])


class Command(FolderTest):
    def test_says_what_it_accepts(self):
        said = run(ROOT / "scripts/release", "--architecture", "riscv64", expect=2)
        self.assertRegex(said, r"riscv64'? \(choose from '?amd64'?, '?arm64'?\)")

    def test_refuses_what_is_not_committed(self):
        clone = self.folder / "clone"
        (clone / "scripts").mkdir(parents=True)
        shutil.copytree(ROOT / "scripts" / "distribution", clone / "scripts" / "distribution", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "scripts" / "release", clone / "scripts")
        run("git", "init", "-q", clone)
        said = run(clone / "scripts" / "release", expect=1)
        self.assertRegex(said, r"^release: scripts/ is not committed \(1 files\); commit it, or give --changed")

    def test_the_sbom_of_no_build_says_what_is_missing(self):
        said = run(ROOT / "scripts/sbom", self.folder, self.folder, "0.2.0", expect=1)
        self.assertRegex(said, r"^sbom: \S+/bin/ddprun: No such file or directory; expected a built program\n$")


if __name__ == "__main__":
    run_tests()
