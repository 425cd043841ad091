"""Two ranks on one GPU, which NCCL takes for two hosts. Gradients, weights and collectives have the
bits of PyTorch's. On the CPU they meet by shared memory."""

from kit.stage import GPU_TWICE, Broken, figure

# Else kernels of cuBLAS may choose how they add, and round inputs to TF32.
ALIKE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NVIDIA_TF32_OVERRIDE": "0"}

FOLDER = "tests/worker/python_parity"
MODES = ("default", "unused", "static", "no_sync", "batch_norm", "float16", "bfloat16",
         "default_copy", "bfloat16_copy")
DRY_MODES = ("default", "no_sync", "bfloat16")
# PyTorch's with its ZeroRedundancyOptimizer, ours with ours.
ZERO = ("sgd_zero", "adam_zero", "adamw_zero")
JOINED = ("join", "join_active")


def numbers(text):
    """The numbers of a line; None if there is none."""
    return None if text is None else [float(number) for number in text.split(",")]


def lines(text):
    """{name: value} of the lines of two words."""
    return dict(line.split() for line in text.splitlines() if len(line.split()) == 2)


def pair(tools, program, script, *words):
    """Returns what both sides say: (name, ours, PyTorch's)."""
    words = [f"--device={tools.device}", *words]
    more = {} if tools.dry else {**GPU_TWICE, **ALIKE}
    ours = tools.output(tools.ranks_on_one_gpu(tools.program(program), *words), **more)
    theirs = tools.output(
        tools.ranks_on_one_gpu(tools.python, tools.file(f"{FOLDER}/{script}"), *words), **more)
    ours, theirs = lines(ours), lines(theirs)
    if sorted(ours) != sorted(theirs):
        raise Broken(f"{program} told {sorted(ours)}, and {script} {sorted(theirs)}")
    return [(name, ours[name], theirs[name]) for name in theirs]


def collectives(tools):
    """Tells how many results of operations differ from Gloo's on the CPU. A sum of two numbers is
    rounded once, whoever adds them."""
    more = {} if tools.dry else GPU_TWICE
    ours = lines(tools.output(tools.ranks_on_one_gpu(
        tools.program("collectives_program"), f"--device={tools.device}"), **more))
    theirs = lines(tools.output(tools.launch(
        "--no-python", tools.python, tools.file(f"{FOLDER}/collectives_program.py"), workers=2)))
    other = [name for name in theirs if numbers(ours.get(name)) != numbers(theirs[name])]
    figure("operations with tensors of ten types", len(ours), len(theirs), goal=["equal", None])
    figure("operations with other numbers than Gloo's", ", ".join(other[:5]) or "none",
           goal=["is", "none"])


def run(tools):
    modes = DRY_MODES if tools.dry else MODES
    for mode, ours, theirs in pair(tools, "parity_trainer", "parity_trainer.py", *modes):
        for what, of_ours, of_theirs in zip(("weights", "gradients"), ours.split(":"),
                                            theirs.split(":")):
            figure(f"{what}, {mode}", of_ours, of_theirs, goal=["equal", None])
    words = ZERO[1:2] if tools.dry else (*ZERO, *JOINED)
    for mode, ours, theirs in pair(tools, "join_zero_trainer", "join_zero_trainer.py", *words):
        figure(f"weights, {mode}", ours, theirs, goal=["equal", None])
    collectives(tools)
