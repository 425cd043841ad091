"""The table at the end of a run, from the records of its stages. Pure: text from values."""

from kit import judge

TITLES = ("stage", "figure", "ours", "PyTorch", "ratio", "goal", "result")
DRY = "a dry run on the CPU: it shows that the kit works, and nothing about a GPU"


def value(figure, name):
    """A number with its unit, or a text; a hyphen stands for nothing."""
    found = figure.get(name)
    if found is None:
        return "-"
    if isinstance(found, float):
        found = f"{found:.4g}"
    unit = figure.get("unit")
    return f"{found} {unit}" if unit and figure.get("result") != judge.NOT_RUN else str(found)


def goal(figure):
    if not figure.get("goal"):
        return "-"
    kind, limit = figure["goal"]
    return kind if limit is None else f"{kind} {limit}"


def figure_row(stage, figure):
    said = figure["result"]
    if figure.get("absent") or figure.get("why"):
        said += f": {figure.get('absent') or figure['why']}"
    of_ratio = f"{figure['ratio']:.3f}" if figure.get("ratio") is not None else "-"
    return (stage, figure["what"], value(figure, "ours"), value(figure, "pytorch"), of_ratio,
            goal(figure), said)


def stage_row(stage, record):
    """The row of the stage as a whole."""
    if record is None:
        return (stage.name, "", "-", "-", "-", "-", f"{judge.NOT_RUN}: it has no line")
    said = record["outcome"] + (f": {record['why']}" if record.get("why") else "")
    took = f"{record['seconds']:.1f} s" if record["outcome"] != judge.NOT_RUN else "-"
    return (stage.name, "", took, "-", "-", f"at most {record['limit_s']} s", said)


def rows(stages, records):
    """Each stage, then its figures. A stage without a record is not run."""
    found = []
    for stage in stages:
        record = records.get(stage.name)
        found.append(stage_row(stage, record))
        found += [figure_row("", figure) for figure in (record or {}).get("figures", [])]
    return found


def text(stages, records):
    """The whole table, with a line before it if the run was dry."""
    cells = [TITLES, *rows(stages, records)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(TITLES) - 1)]
    lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]])
             for row in cells]
    is_dry = any(record.get("dry") for record in records.values())
    return "\n".join([*([DRY] if is_dry else []), *lines])
