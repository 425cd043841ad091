"""The file of a run: one line of JSON for each stage that has ended. A kit that is cut leaves the
lines of what it had, and the last line of a stage counts."""

import json
import os


def append(path, record):
    """Adds the record as one line, which is on the disk before this returns."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def latest(text):
    """{name of a stage: its last record}. A line that was cut within is left out."""
    found = {}
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "stage" in record:
            found[record["stage"]] = record
    return found


def read(path):
    with open(path, encoding="utf-8") as file:
        return latest(file.read())
