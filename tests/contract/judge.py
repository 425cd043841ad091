"""Whether what one command line did under both launchers is equal but for the differences that are
meant. Pure."""

import fnmatch

ABSENT = "<absent>"


def differences(theirs, ours):
    """name -> (torchrun's value, ddprun's value)."""
    names = sorted(set(theirs) | set(ours))
    return {
        name: (theirs.get(name, ABSENT), ours.get(name, ABSENT))
        for name in names
        if theirs.get(name, ABSENT) != ours.get(name, ABSENT)
    }


def matching(names, pattern):
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]


def judge(case, observed, always_patterns, met_always):
    """(differences explained by the case, failures) of one line; `observed` is torchrun's facts,
    then ddprun's. Adds to `met_always` what of the patterns that hold for every line was met."""
    theirs, ours = observed
    found = differences(theirs, ours)
    explained = set()
    for pattern in always_patterns:
        names = matching(found, pattern)
        met_always.update([pattern] if names else [])
        explained.update(names)
    always = set(explained)
    failures = []
    for pattern in case.differs:
        names = matching(found, pattern)
        explained.update(names)
        if not names:
            failures.append(f"expected to differ, and does not: {pattern}")
    for name, value in case.ours.items():
        if ours.get(name, ABSENT) != value:
            failures.append(
                f"{name}: ddprun's should be {value!r}, is {ours.get(name, ABSENT)!r}"
            )
    for name in sorted(set(found) - explained):
        failures.append(f"{name}: torchrun {found[name][0]!r}, ddprun {found[name][1]!r}")
    return explained - always, failures
