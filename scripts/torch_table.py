"""The table of releases of torch in docs/support.md: reading it, adding rows, and whether it lags
behind the registry. Pure."""

import re

BEGIN = "<!-- scripts/torch_matrix writes from here -->"
END = "<!-- scripts/torch_matrix writes until here -->"
SAME = "same"


def minor(version):
    """Returns (2, 15) of 2.15, 2.15.0 or 2.15.0+cu132."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise ValueError(f"{version}: expected a release of torch, such as 2.15")
    return int(match[1]), int(match[2])


def read_rows(page):
    """Returns {(2, 15): {column: verdict}} of the part between the marks; "torch" is the release
    itself. Raises ValueError if the page has no such part."""
    if BEGIN not in page or END not in page:
        raise ValueError(f"expected the lines {BEGIN} and {END}")
    lines = page.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    if len(cells) < 2:
        return {}
    releases = cells[0][1:]
    rows = {minor(release): {"torch": release} for release in releases}
    for check, *verdicts in cells[2:]:
        for release, verdict in zip(releases, verdicts):
            rows[minor(release)][check] = verdict
    return rows


def write_rows(page, rows, checks):
    """Returns the page with these rows. A release is a column there, and a check is a line."""
    releases = [rows[key] for key in sorted(rows)]
    lines = [
        ["checked with torch", *(release["torch"] for release in releases)],
        ["---"] * (len(releases) + 1),
        *([check, *(release.get(check, "not run") for release in releases)] for check in checks),
    ]
    table = "\n".join(f"| {' | '.join(cells)} |".replace("| --- ", "|---").replace("--- |", "---|")
                      if cells[0] == "---" else f"| {' | '.join(cells)} |" for cells in lines)
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


def lags(rows, released):
    """Returns the minors of the registry, as text, that are newer than all of the table."""
    newest = max(rows, default=(0, 0))
    newer = {minor(version) for version in released if re.fullmatch(r"\d+\.\d+\.\d+", version)}
    return [f"{major}.{number}" for major, number in sorted(newer) if (major, number) > newest]
