"""The manifest of a kit: the commit, and size and checksum of each file."""

import hashlib
import json
import pathlib
import subprocess

NAME = "manifest.json"


def checksum(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def commit(root):
    """The commit that a kit was packed from, or that of this checkout. A plus marks changes."""
    path = pathlib.Path(root) / NAME
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))["commit"]
    asked = ["git", "-C", str(root), "describe", "--always", "--abbrev=12", "--dirty=+"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def torch(root):
    """The version of torch that the programs of a kit were built with; None in a checkout."""
    path = pathlib.Path(root) / NAME
    return json.loads(path.read_text(encoding="utf-8"))["torch"] if path.exists() else None


def write(folder, commit_of_root, torch_version):
    """Writes the manifest of all files below the folder."""
    folder = pathlib.Path(folder)
    files = {str(path.relative_to(folder)): {"bytes": path.stat().st_size,
                                             "sha256": checksum(path)}
             for path in sorted(folder.rglob("*")) if path.is_file()}
    said = {"commit": commit_of_root, "torch": torch_version, "files": files}
    (folder / NAME).write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


def faults(root):
    """Files of an unpacked kit that are gone or differ. A checkout has no manifest."""
    path = pathlib.Path(root) / NAME
    if not path.exists():
        return []
    files = json.loads(path.read_text(encoding="utf-8"))["files"]
    gone = [name for name in files if not (root / name).is_file()]
    other = [name for name in files if name not in gone and
             checksum(root / name) != files[name]["sha256"]]
    return [*(f"{name} is gone" for name in gone), *(f"{name} differs" for name in other)]
