"""Runs stages one after another, and writes a line of JSON when one has ended."""

import datetime
import json
import os
import signal
import sys
import time
import typing

from kit import judge, plan, processes, results, table

LOG_LINES = 3  # of the log of a stage that failed, in its reason
LOG_MARK = "==== "  # and the name of a stage, before its lines


class Run(typing.NamedTuple):
    """One run. `command_of(stage)` is the command line of a stage, `env` its variables."""

    stages: list
    command_of: typing.Callable
    env: dict
    seconds: float
    dry: bool
    results: str  # the file of JSON lines
    facts: dict  # that each line has: the kit's commit


class Told:
    """The figures of a stage so far. Other lines are shown, since they say how a stage goes."""

    def __init__(self, dry):
        self.dry, self.figures, self.facts = dry, [], {}

    def take(self, line):
        try:
            said = json.loads(line)
            if "figure" in said:
                self.figures.append(judge.judged(said["figure"], self.dry))
            self.facts.update(said.get("facts", {}))
        except (ValueError, TypeError, AttributeError, KeyError):
            print(f"    {line}", flush=True)


def reason(end, stage, log):
    """Why a stage was cut or failed; empty if it ended well."""
    said = []
    if end.was_cut:
        said.append(f"it did not end in {stage.limit_s} s")
    elif end.exit_code != 0:
        lines = [line.strip() for line in processes.lines_behind(log, LOG_MARK)
                 if any(map(str.isalnum, line))]  # no line that underlines
        said.append(f"exit code {end.exit_code}: {' | '.join(lines[-LOG_LINES:])}")
    if end.left:
        said.append(f"processes that SIGKILL does not end: {', '.join(map(str, end.left))}")
    return "; ".join(said)


def run_stage(run, stage):
    """Runs one stage and returns its record. One log of all stages lies beside the results."""
    told, log = Told(run.dry), f"{run.results}.log"
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"{LOG_MARK}{stage.name}\n")
    end = processes.run(run.command_of(stage), run.env, stage.limit_s, log, told.take)
    found = [figure["result"] for figure in told.figures]
    return {"outcome": judge.outcome(end.was_cut, end.exit_code, found),
            "why": reason(end, stage, log), "seconds": round(end.seconds, 3),
            "figures": told.figures, "facts": told.facts}


def record_of(run, stage, left_s):
    """The record of a stage, which runs if it fits into the time."""
    head = {"stage": stage.name, "dry": run.dry, "limit_s": stage.limit_s,
            "began": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    if plan.fits(stage, left_s):
        found = run_stage(run, stage)
    else:
        why = f"{max(0, left_s):.0f} s were left, and its limit is {stage.limit_s} s"
        found = {"outcome": judge.NOT_RUN, "why": why, "seconds": 0, "figures": [], "facts": {}}
    return {**head, **found, **run.facts}


class Cut(Exception):
    """Somebody ended the run."""


def cut(signo, _):
    raise Cut(signal.Signals(signo).name)


def run_all(run):
    """Runs the stages that fit, and prints each as it ends. Returns the records by name."""
    processes.take_in_orphans()
    for signo in signal.SIGTERM, signal.SIGINT, signal.SIGHUP:
        signal.signal(signo, cut)
    began, records = time.monotonic(), {}
    try:
        for at, stage in enumerate(run.stages):
            print(f"{stage.name}: {stage.about}", flush=True)
            left_s = run.seconds - (time.monotonic() - began)
            longer = plan.with_what_is_left(stage, run.stages[at + 1:], left_s)
            records[stage.name] = record_of(run, longer, left_s)
            results.append(run.results, records[stage.name])
            print(f"{stage.name}: {records[stage.name]['outcome']}", flush=True)
    except Cut as signo:
        print(f"gpu_kit: cut by {signo}; the stages that ended are in {run.results}")
    return records


def report(stages, records, dry):
    """Prints the table; returns the exit code."""
    print(table.text(stages, records))
    outcomes = [records[stage.name]["outcome"] if stage.name in records else judge.NOT_RUN
                for stage in stages]
    is_whole = all(stage.name in records for stage in stages)
    return judge.exit_code(outcomes, dry and is_whole)


def clean_path(path):
    """The absolute path of the results, whose folder is made."""
    path = os.path.abspath(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def stage_command(kit, options):
    """Returns command_of() for a kit: a stage is a call of the kit itself."""
    more = ["--dry"] if options.dry else []
    return lambda stage: [sys.executable, "-B", kit, "stage", stage.name, "--bin", options.bin,
                          "--python", options.python, *more]
