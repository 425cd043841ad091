"""Goals of figures, and what the end of a stage means. Pure: no process, no file, no clock.

A stage tells figures. Each is a dict with `what`, `ours` and perhaps `pytorch`, `unit` and `goal`.
A goal is a list of a kind of GOALS and its limit. A figure with `gpu_only` has its goal on a GPU
alone. A figure with `absent` says why it could not be had. `why` explains a result.
"""

import math

# The results of figures.
MET, MISSED, NOT_JUDGED, NOT_RUN = "met", "missed", "not judged", "not run"
# How stages end, beside MISSED and NOT_RUN. PARTLY: some of its figures could not be had.
PASSED, PARTLY, FAILED, CUT = "passed", "partly run", "failed", "cut"

BAD = (MISSED, FAILED, CUT)


def number(value):
    """Whether it is a number that can be compared."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and not math.isnan(value)


def ratio(figure):
    """Ours over PyTorch's; None if there is none."""
    ours, theirs = figure.get("ours"), figure.get("pytorch")
    return ours / theirs if number(ours) and number(theirs) and theirs > 0 else None


def within(value, test):
    return number(value) and test(value)


GOALS = {
    "ratio at most": lambda figure, limit: within(ratio(figure), lambda value: value <= limit),
    "at most": lambda figure, limit: within(figure.get("ours"), lambda value: value <= limit),
    "at least": lambda figure, limit: within(figure.get("ours"), lambda value: value >= limit),
    "within": lambda figure, share: within(ratio(figure), lambda value: abs(value - 1) <= share),
    "equal": lambda figure, _: figure.get("ours") == figure.get("pytorch") is not None,
    "is": lambda figure, expected: figure.get("ours") == expected,
    "is not": lambda figure, bad: figure.get("ours") not in (None, bad),
}


def judged(figure, dry):
    """The figure with its ratio and its result. A dry run judges no figure of a GPU."""
    if "absent" in figure:
        return {**figure, "result": NOT_RUN}
    goal = figure.get("goal")
    if goal is None or (dry and figure.get("gpu_only")):
        result = NOT_JUDGED
    else:
        result = MET if GOALS[goal[0]](figure, goal[1]) else MISSED
    return {**figure, "ratio": ratio(figure), "result": result}


def outcome(was_cut, exit_code, results):
    """How a stage ended, by the end of its process and the results of its figures."""
    if was_cut:
        return CUT
    if exit_code != 0 or not results:
        return FAILED
    if MISSED in results:
        return MISSED
    if all(result == NOT_RUN for result in results):
        return NOT_RUN
    return PARTLY if NOT_RUN in results else PASSED


def exit_code(outcomes, dry):
    """1 if a goal is missed or a stage did not end well, 3 if something was not run. A dry run
    leaves out what needs a GPU, and that is no fault."""
    if any(one in BAD for one in outcomes):
        return 1
    if dry:
        return 0
    return 3 if any(one in (NOT_RUN, PARTLY) for one in outcomes) else 0
