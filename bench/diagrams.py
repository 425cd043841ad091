"""Pictures that need no package: SVG whose words and numbers are text. Each takes rows of a CSV
file, as dictionaries, or a page's text. It raises ValueError if they say nothing to draw."""
import math
import re
from xml.sax.saxutils import escape

BLUE, ORANGE, GREEN, RED, GREY = "#1f6fb2", "#d2691e", "#2e8b57", "#b22222", "#888888"
COLOURS = BLUE, ORANGE, GREEN, RED
COLOUR_OF_PHASE = {"scatter-reduce": "#dbe9f6", "all-gather": "#fbe3d0"}
FONT = 'font-family="sans-serif" font-size="12"'


class Picture:
    """Shapes in pixels; y grows downwards."""

    def __init__(self, width, height):
        self.size, self.shapes = (width, height), []

    def box(self, x, y, width, height, fill="white", edge=GREY, round_by=4):
        self.shapes.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{round_by}" fill="{fill}" stroke="{edge}"/>')

    def text(self, x, y, words, anchor="middle", colour="black", weight="normal"):
        self.shapes.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-weight="{weight}">{escape(words)}</text>')

    def line(self, points, colour=GREY, dashed=False, arrow=False):
        more = (' stroke-dasharray="5 4"' if dashed else "") + (' marker-end="url(#arrow)"' if arrow else "")
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.shapes.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="1.5"{more}/>')

    def dot(self, x, y, colour):
        self.shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')

    def svg(self):
        width, height = self.size
        arrow = f'<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{GREY}"/></marker></defs>'
        return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" {FONT}>',
                          arrow, f'<rect width="{width}" height="{height}" fill="white"/>', *self.shapes, "</svg>", ""])


def wanted(rows, columns):
    """The rows, of which there must be some, with these columns."""
    rows = list(rows)
    if not rows:
        raise ValueError(f"no rows; expected some with {', '.join(columns)}")
    lacking = [column for column in columns if rows[0].get(column) is None]
    if lacking:
        raise ValueError(f"no column {', '.join(lacking)}; expected {', '.join(columns)}")
    return rows


def ring(rows):
    """A row a rank and a column a step: which chunk the rank sends, to whom, and when."""
    rows = wanted(rows, ("rank", "to", "phase", "step", "chunk", "bytes", "begin_us", "end_us"))
    ranks = max(int(row["rank"]) for row in rows) + 1
    if len(rows) != 2 * ranks * (ranks - 1):
        raise ValueError(f"{len(rows)} sends of {ranks} ranks; expected {2 * ranks * (ranks - 1)}")
    wide, high, left, top = 132, 76, 64, 74
    picture = Picture(left + 2 * (ranks - 1) * wide + 10, top + ranks * high + 10)
    picture.text(8, 20, f"One sum of {ranks} x {rows[0]['bytes']} bytes around a ring of {ranks} ranks over TCP, as recorded", "start", weight="bold")
    for rank in range(ranks):
        picture.text(8, top + rank * high + 26, f"rank {rank}", "start")
    for row in rows:
        rank, to, step = int(row["rank"]), int(row["to"]), int(row["step"]) + (ranks - 1) * (row["phase"] == "all-gather")
        x, y = left + (step - 1) * wide, top + rank * high
        if rank == 0:
            picture.text(x + 60, top - 18, f"{row['phase']} {row['step']}")
        picture.box(x, y, 120, 44, COLOUR_OF_PHASE[row["phase"]])
        picture.text(x + 60, y + 18, f"chunk {row['chunk']} → rank {to}")
        picture.text(x + 60, y + 36, f"{float(row['begin_us']) / 1000:.2f} – {float(row['end_us']) / 1000:.2f} ms")
        if to > rank:
            picture.line([(x + 60, y + 44), (x + 60, y + high - 2)], arrow=True)
        else:  # the last rank's neighbour is the first one
            picture.line([(x + 60, y + 44), (x + 60, y + 56), (x + 126, y + 56), (x + 126, top - 8), (x + 60, top - 8), (x + 60, top - 1)], arrow=True)
    return picture.svg()


def bytes_of(way, ranks, gradient):
    """The bytes that the busiest rank sends for one sum, by the formula."""
    return (ranks - 1) * gradient * (1 if way == "parameter server" else 2 / ranks)


def sums(rows):
    """Bytes that the busiest rank sends for one sum, over the ranks. Lines are the formulas."""
    rows = wanted(rows, ("way", "ranks", "gradient_bytes", "rank", "sent"))
    gradient = int(rows[0]["gradient_bytes"])
    busiest = {}
    for row in rows:
        place = row["way"], int(row["ranks"])
        busiest[place] = max(busiest.get(place, 0), int(row["sent"]))
    counts = sorted({ranks for _, ranks in busiest})
    most = max(busiest.values())
    left, top, wide, high = 70, 68, 520, 300
    picture = Picture(left + wide + 40, top + high + 56)

    def place(ranks, number):
        span = max(counts[-1] - counts[0], 1)
        return left + wide * (ranks - counts[0]) / span, top + high * (1 - number / most)

    picture.text(8, 20, f"MB that the busiest rank sends for a sum of {gradient / 1e6:.2f} MB, over the ranks", "start", weight="bold")
    picture.text(8, 38, "Dots: counted by the kernel on the ranks' TCP connections. Lines: (N-1)K and 2K(N-1)/N.", "start")
    picture.line([(left, top), (left, top + high), (left + wide, top + high)])
    for ranks in counts:
        picture.text(place(ranks, 0)[0], top + high + 18, f"N = {ranks}")
    above = {"parameter server": (BLUE, -10), "ring": (ORANGE, -10), "mesh": (GREEN, 20)}
    for index, (way, (colour, offset)) in enumerate(above.items()):
        picture.line([place(ranks, bytes_of(way, ranks, gradient)) for ranks in counts], colour, dashed=True)
        picture.text(left + 60 + 180 * index, top + high + 42, f"● {way}", colour=colour)
        for ranks in counts:
            if (way, ranks) in busiest:
                x, y = place(ranks, busiest[way, ranks])
                picture.dot(x, y, colour)
                picture.text(x, y + offset, f"{busiest[way, ranks] / 1e6:.2f}", colour=colour)
    return picture.svg()


class Axes:
    """A frame in a picture, and places in it by numbers. Both axes begin at 0 unless `first` says
    where the one below begins."""

    def __init__(self, picture, corner, size, ends, first=0):
        self.picture, self.first = picture, first
        (self.left, self.top), (self.wide, self.high), (self.last, self.most) = corner, size, ends
        picture.line([(self.left, self.top), (self.left, self.top + self.high), (self.left + self.wide, self.top + self.high)])

    def at(self, x, y):
        return self.left + self.wide * (x - self.first) / ((self.last - self.first) or 1), self.top + self.high * (1 - y / (self.most or 1))

    def label(self, x, words):
        self.picture.text(self.at(x, 0)[0], self.top + self.high + 18, words)

    def ticks(self, numbers):
        for number in numbers:
            self.picture.text(self.left - 6, self.at(self.first, number)[1] + 4, f"{number:g}", "end")

    def draw(self, points, colour, dashed=False):
        self.picture.line([self.at(*point) for point in points], colour, dashed)


def steps_to(most):
    """At most eight numbers from 0 to `most`, by 1, 2 or 5 and zeros."""
    step = next(unit * 10.0 ** power for power in range(-6, 12) for unit in (1, 2, 5) if most <= 7 * unit * 10.0 ** power)
    return [step * number for number in range(int(most / step + 1e-9) + 1)]


def scaling(rows):
    """A panel an example, batch size, machine and device. It has both sides' samples a second over
    one worker's, and the ideal up to the cores."""
    rows = wanted(rows, ("machine", "cores", "device", "example", "side", "workers", "batch_size", "over_one_worker"))
    panels = sorted({(row["example"], int(row["batch_size"]), row["machine"], int(row["cores"]), row["device"]) for row in rows})
    picture = Picture(430 * len(panels) + 10, 380)
    for index, panel in enumerate(panels):
        example, batch_size, machine, cores, device = panel
        mine = [row for row in rows if (row["example"], int(row["batch_size"]), row["machine"], int(row["cores"]), row["device"]) == panel]
        counts = sorted({int(row["workers"]) for row in mine})
        most = max(cores, *(float(row["over_one_worker"]) for row in mine))
        axes = Axes(picture, (430 * index + 50, 60), (350, 250), (math.log2(counts[-1]), most), math.log2(counts[0]))
        picture.text(430 * index + 50, 22, f"{example}, batch {batch_size}, {device} ({machine})", "start", weight="bold")
        picture.text(430 * index + 50, 42, "speed over the number of workers; that of one worker is 1", "start")
        axes.ticks(steps_to(most))
        for count in counts:
            axes.label(math.log2(count), str(count))
        axes.draw([(math.log2(count), min(count, cores)) for count in counts], GREY, dashed=True)
        picture.text(axes.left, 356, "- - ideal", "start", GREY)
        for place, side in enumerate(dict.fromkeys(row["side"] for row in mine)):
            points = sorted((math.log2(int(row["workers"])), float(row["over_one_worker"])) for row in mine if row["side"] == side)
            axes.draw(points, COLOURS[place % len(COLOURS)])
            for point in points:
                picture.dot(*axes.at(*point), COLOURS[place % len(COLOURS)])
            picture.text(axes.left + 90 * (place + 1), 356, f"● {side}", "start", COLOURS[place % len(COLOURS)])
    return picture.svg()


def curves(rows):
    """Test loss over time, a line a way."""
    rows = wanted(rows, ("way", "seconds", "loss"))
    last, most = (max(float(row[column]) for row in rows) for column in ("seconds", "loss"))
    ways = list(dict.fromkeys(row["way"] for row in rows))
    picture = Picture(660, 370 + 20 * len(ways))
    picture.text(8, 20, "Test loss over seconds", "start", weight="bold")
    axes = Axes(picture, (60, 40), (570, 280), (last, most))
    axes.ticks(steps_to(most))
    for number in steps_to(last):
        axes.label(number, f"{number:g} s")
    for place, way in enumerate(ways):
        colour = COLOURS[place % len(COLOURS)]
        axes.draw([(float(row["seconds"]), float(row["loss"])) for row in rows if row["way"] == way], colour)
        picture.text(60, 364 + 20 * place, f"● {way}", "start", colour)
    return picture.svg()


def plain(cell):
    """A cell of a page's table without marks and links."""
    return re.sub(r"[`*]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell)).strip()


def broken(words, width):
    """The words in lines of at most so many letters."""
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def rows_with_mode(table):
    """The first two cells of each row of a page's table."""
    return [[plain(cell) for cell in line.strip("|").split("|")[:2]] for line in table.splitlines()]


def answer(picture, y, question, mode):
    """One question on the left, and what a yes leads to on the right."""
    picture.box(20, y, 330, 40, "#dbe9f6")
    picture.box(420, y, 350, 40, "#e3f2e1")
    for x, words in ((185, question), (595, mode)):
        lines = broken(words, 50)
        for number, line in enumerate(lines):
            picture.text(x, y + 24 + 15 * (number - (len(lines) - 1) / 2), line)
    picture.line([(350, y + 20), (419, y + 20)], arrow=True)
    picture.text(385, y + 15, "yes")


def which(page):
    """The page's first two tables, by their first two columns. The first yes of the first one
    counts, and each of the second one."""
    tables = [rows_with_mode(table) for table in re.findall(r"^\|.*\|\n\|[-|]+\|\n((?:\|.*\|\n)+)", page, re.MULTILINE)]
    if len(tables) < 2:
        raise ValueError(f"{len(tables)} tables; expected two, with a question and a mode in each row")
    modes, additions = tables[:2]
    high, top = 58, 40
    second = top + len(modes) * high + 30
    picture = Picture(790, second + len(additions) * high)
    picture.text(20, 24, "Ask from the top: the first yes is the mode", "start", weight="bold")
    for index, (question, mode) in enumerate(modes):
        y = top + index * high
        answer(picture, y, question, mode)
        if index + 1 < len(modes):
            picture.line([(185, y + 40), (185, y + high - 1)], arrow=True)
            picture.text(202, y + 54, "no")
    picture.text(20, second - 16, "Ask each of these, too: each yes adds to the mode", "start", weight="bold")
    for index, (question, mode) in enumerate(additions):
        answer(picture, second + index * high, question, mode)
    return picture.svg()
