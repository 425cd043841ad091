"""examples/data/fetch against a server of our own: sums, archives, and what goes wrong. Only the
standard library."""

import functools
import hashlib
import http.server
import io
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import threading
import unittest

import support

FETCH = support.ROOT / "examples" / "data" / "fetch"


def archive_of(files):
    """A .tar.gz with these names and bytes, and a link that leads out of it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, body in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
        link = tarfile.TarInfo("set/train/link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return made.getvalue()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Fetch(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        self.site = self.root / "site"
        self.site.mkdir()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=self.site))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.folder = self.root / "data" / "set"

    def serve(self, name, body, md5=None, **more):
        (self.site / name).write_bytes(body)
        return {"url": f"http://127.0.0.1:{self.server.server_port}/{name}", "md5": md5 or hashlib.md5(body).hexdigest(), **more}

    def fetch(self, *files):
        sets = self.root / "sets.json"
        sets.write_text(json.dumps({"some": {"about": "a set", "files": files}}))
        return subprocess.run([sys.executable, FETCH, "some", self.folder, "--sets", sets], capture_output=True, text=True, timeout=60)

    def assert_nothing_left(self):
        self.assertFalse(self.folder.exists())
        self.assertEqual(list(self.folder.parent.iterdir()), [])

    def test_plain_files(self):
        files = [self.serve("a.data", b"alpha"), self.serve("b.test", b"beta")]
        done = self.fetch(*files)
        self.assertEqual((done.returncode, done.stdout), (0, f"{self.folder}: fetched, 2 files\n"), done.stderr)
        self.assertEqual((self.folder / "a.data").read_bytes(), b"alpha")
        (self.site / "a.data").unlink()
        self.assertEqual(self.fetch(*files).stdout, f"{self.folder}: there already\n")

    def test_an_archive_gives_what_is_wanted_and_nothing_outside(self):
        body = archive_of({"set/train/pos/1.txt": b"good", "set/readme": b"x", "set/../../evil.txt": b"x", "/evil.txt": b"x",
                           "other/train/2.txt": b"x"})
        done = self.fetch(self.serve("s.tar.gz", body, unpack="set", keep=["train/.*\\.txt"]))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([path.name for path in self.folder.rglob("*") if path.is_file() and path.name != ".fetched"], ["1.txt"])
        self.assertEqual(list(self.root.rglob("evil.txt")), [])

    def test_a_wrong_sum_leaves_nothing(self):
        done = self.fetch(self.serve("a.data", b"alpha", md5="0" * 32))
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^fetch: fetch http://127.0.0.1:\d+/a.data: MD5 sum [0-9a-f]{32}, expected 0{32}\n$")
        self.assert_nothing_left()

    def test_what_is_not_there_is_one_line(self):
        file = self.serve("a.data", b"alpha")
        (self.site / "a.data").unlink()
        done = self.fetch(file)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^fetch: fetch http://127.0.0.1:\d+/a.data: HTTP Error 404: .*\n$")
        self.assert_nothing_left()

    def test_a_cut_archive_leaves_nothing(self):
        body = archive_of({f"set/train/{i}.txt": bytes(range(256)) * 40 for i in range(50)})
        done = self.fetch(self.serve("s.tar.gz", body[:len(body) // 2], unpack="set", keep=[".*"]))
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^fetch: unpack s.tar.gz: .*\n$")
        self.assert_nothing_left()

    def test_a_folder_with_something_else_stays_as_it_is(self):
        self.folder.mkdir(parents=True)
        (self.folder / "thesis.txt").write_text("mine")
        done = self.fetch(self.serve("a.data", b"alpha"))
        self.assertEqual((done.returncode, done.stderr), (1, f"fetch: {self.folder}: is not empty, and holds no whole set; name a new folder\n"))
        self.assertEqual((self.folder / "thesis.txt").read_text(), "mine")

    def test_the_real_sets_are_complete_and_listed(self):
        sets = json.loads((FETCH.parent / "sets.json").read_text())
        done = subprocess.run([sys.executable, FETCH, "list"], capture_output=True, text=True, check=True)
        for name, entry in sets.items():
            self.assertIn(name, done.stdout)
            for file in entry["files"]:
                self.assertRegex(file["md5"], r"^[0-9a-f]{32}$")
                self.assertTrue(file["url"].startswith("https://"))


if __name__ == "__main__":
    unittest.main()
