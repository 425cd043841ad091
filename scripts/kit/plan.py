"""The stages in their order, and which of them fit into the time. Pure: no process, no clock."""

import typing

# The time of a whole run.
RUN_S = 420
# The part of it that is kept for its own end: to cut a stage, and to print the table.
RESERVE_S = 8
# The factor of limits in a dry run.
DRY_FACTOR = 8


class Stage(typing.NamedTuple):
    """A part of the run, with a limit. `module` is its file in stages/."""

    name: str
    limit_s: int
    module: str
    about: str


# Checks of results come first, and long measurements come late. All limits fit into a run. A
# stage also gets what earlier ones have left (with_what_is_left()).
STAGES = (
    Stage("facts", 10, "facts", "driver, clocks, versions, and what the doctor says"),
    Stage("gpu-tests", 40, "gpu_tests", "the test programs with the label gpu"),
    Stage("training", 20, "training", "mnist and its Python twin learn alike"),
    Stage("two-ranks", 45, "two_ranks", "two ranks on one GPU have the bits of PyTorch's"),
    Stage("capture", 20, "capture", "a step is captured and replayed, with the bits of eager ones"),
    Stage("faults", 60, "faults", "faults that only a real GPU can show"),
    Stage("costs", 35, "costs", "start, a sum, SyncBatchNorm and memory beside PyTorch's"),
    Stage("optimizers", 15, "optimizers", "a step of SGD, Adam and AdamW beside PyTorch's"),
    Stage("steps", 100, "steps", "training steps beside PyTorch's, with one and two ranks"),
    Stage("buckets", 20, "buckets", "whether the default size of buckets is a good one"),
    Stage("standby", 15, "standby", "a standby holds no GPU, and a restart with and without it"),
    Stage("endurance", 30, "endurance", "2,000 steps with 3 restarts leave no memory behind"),
)


class UnknownStage(ValueError):
    """A name that no stage has."""


def for_a_dry_run(stages):
    """The stages with longer limits. A machine that tests the kit may do much else."""
    return [stage._replace(limit_s=DRY_FACTOR * stage.limit_s) for stage in stages]


def chosen(names, stages=STAGES):
    """The stages of these names, in the order of the run; all of them without names."""
    unknown = [name for name in names if name not in [stage.name for stage in stages]]
    if unknown:
        accepted = ", ".join(stage.name for stage in stages)
        raise UnknownStage(f"'{unknown[0]}' is no stage; expected some of {accepted}")
    return [stage for stage in stages if not names or stage.name in names]


def with_what_is_left(stage, later, left_s):
    """The stage with up to twice its limit, if the `later` ones keep theirs."""
    spare = left_s - RESERVE_S - sum(other.limit_s for other in later)
    return stage._replace(limit_s=max(stage.limit_s, min(2 * stage.limit_s, int(spare))))


def fits(stage, left_s):
    """Whether the stage may use its whole limit. A stage that gets less could show nothing."""
    return stage.limit_s + RESERVE_S <= left_s
