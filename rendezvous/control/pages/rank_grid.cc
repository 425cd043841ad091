#include "rendezvous/control/pages/rank_grid.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "rendezvous/control/pages/page_text.h"
#include "rendezvous/control/pages/rank_states.h"

namespace ddprun::http {
namespace {

constexpr int kWidth = 1000;  // of a drawing, in its own units
constexpr int kCell = 14;
constexpr int kNodeGap = 4;
constexpr int kLabel = 110;  // left of a node's cells
constexpr int kMostCellsInALine = 60;
constexpr std::size_t kMostLabel = 14;  // bytes of a host's name beside its cells
constexpr std::size_t kMostTitleName = 64;
constexpr std::size_t kMostState = 40;

struct Box {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
};

// `title` is safe for HTML. `sign`: drawn if there is room.
void add_item(std::string& page, const Box& box, StateStyle style, std::string_view title,
              std::string_view sign) {
  add(page,
      "<g role=\"listitem\"><title>{}</title><rect class=\"{}\" x=\"{:.5g}\" y=\"{:.5g}\" "
      "width=\"{:.5g}\" height=\"{:.5g}\"/>",
      title, style.css_class, box.x, box.y, box.width, box.height);
  if (box.width >= kCell - 1)
    add(page, "<text class=\"sign\" x=\"{:.5g}\" y=\"{:.5g}\" aria-hidden=\"true\">{}</text>",
        box.x + box.width / 2, box.y + 10, sign);
  page += "</g>\n";
}

void begin_drawing(std::string& page, double height, std::string_view label) {
  add(page,
      "<svg class=\"grid\" role=\"list\" aria-label=\"{}\" viewBox=\"0 0 {} {:.5g}\" "
      "width=\"{}\" height=\"{:.5g}\">\n",
      label, kWidth, height, kWidth, height);
}

// ---- a cell for each rank ----

// The places of nodes: columns of equal width, row by row.
struct Places {
  int columns = 1;
  int cells_in_a_line = 1;
  double height = 0;  // of one node
};

Places places_for(int widest) {
  Places places;
  places.cells_in_a_line = std::clamp(widest, 1, kMostCellsInALine);
  const int width = kLabel + places.cells_in_a_line * kCell + kCell;
  places.columns = std::max(1, kWidth / width);
  const int lines = std::max(1, (widest + kMostCellsInALine - 1) / kMostCellsInALine);
  places.height = lines * kCell + kNodeGap;
  return places;
}

void add_node(std::string& page, const JobStatus& job, const SeatStatus& seat, Box at, int line) {
  const std::string name = shown(seat.hostname, kMostTitleName);
  add(page, "<text class=\"host\" x=\"{:.5g}\" y=\"{:.5g}\" aria-hidden=\"true\">{}{}</text>\n",
      at.x, at.y + 10, seat.node_rank < 0 ? "" : fmt::format("{} ", seat.node_rank),
      shown(seat.hostname, kMostLabel));
  for (int i = 0; i < seat.workers; ++i) {
    const int rank = seat.first_rank < 0 ? -1 : seat.first_rank + i;
    const std::string_view state = rank_state(job, seat, rank);
    const std::string who = rank < 0 ? std::string("a worker") : fmt::format("rank {}", rank);
    const int row = i / line;
    add_item(page, {at.x + kLabel + (i % line) * kCell, at.y + row * kCell, kCell - 1, kCell - 1},
             style_of(state), fmt::format("{} on {}: {}", who, name, shown(state, kMostState)),
             style_of(state).sign);
  }
}

void add_cells(const JobStatus& job, std::string& page) {
  const int widest = std::ranges::max(job.seats, {}, &SeatStatus::workers).workers;
  const Places places = places_for(widest);
  const auto nodes = static_cast<int>(job.seats.size());
  const int columns = std::min(places.columns, nodes > 8 ? nodes : 1);
  const int rows = (nodes + columns - 1) / columns;
  begin_drawing(page, rows * places.height, "ranks");
  for (int i = 0; i < nodes; ++i) {
    const int column = i / rows;
    const Box at{.x = static_cast<double>(kWidth) / columns * column,
                 .y = (i % rows) * places.height};
    add_node(page, job, job.seats[static_cast<std::size_t>(i)], at, places.cells_in_a_line);
  }
  page += "</svg>\n";
}

// ---- bands of nodes ----

// Seats [first, first + count), all in one row of the drawing and of the same state.
struct Band {
  std::size_t first = 0;
  std::size_t count = 0;
};

// One more than `most` if there are more.
std::vector<Band> bands_of(const JobStatus& job, std::size_t per_row, std::size_t most) {
  std::vector<Band> bands;
  std::string_view before;
  for (std::size_t i = 0; i < job.seats.size() && bands.size() <= most; ++i) {
    const std::string_view state = node_state(job, job.seats[i]);
    if (i % per_row == 0 || state != before) bands.push_back({i, 0});
    ++bands.back().count;
    before = state;
  }
  return bands;
}

std::string band_title(const JobStatus& job, const Band& band) {
  const SeatStatus& first = job.seats[band.first];
  const SeatStatus& last = job.seats[band.first + band.count - 1];
  std::string title =
      band.count == 1 ? shown(first.hostname, kMostTitleName) : counted(band.count, "node");
  if (first.node_rank >= 0 && last.node_rank > first.node_rank)
    add(title, ", {}–{}", first.node_rank, last.node_rank);
  if (first.node_rank >= 0 && band.count == 1) add(title, ", node {}", first.node_rank);
  return title + ": " + shown(node_state(job, first), kMostState);
}

// A wide band has its title in it.
void add_band(const JobStatus& job, const Band& band, const Box& box, std::string& page) {
  constexpr double kUnitsOfATitle = 250;
  const StateStyle style = style_of(node_state(job, job.seats[band.first]));
  const std::string title = band_title(job, band);
  add_item(page, box, style, title, box.width < kUnitsOfATitle ? style.sign : title);
}

void add_bands(const JobStatus& job, std::size_t& room, std::string& page) {
  constexpr std::size_t kRows = 16;
  constexpr std::size_t kFewestInARow = 64;
  const std::size_t per_row = std::max((job.seats.size() + kRows - 1) / kRows, kFewestInARow);
  const std::vector<Band> bands = bands_of(job, per_row, room);
  if (bands.size() > room) return;
  room -= bands.size();
  const std::size_t rows = (job.seats.size() + per_row - 1) / per_row;
  begin_drawing(page, static_cast<double>(rows) * (kCell + 1), "nodes");
  const double width = static_cast<double>(kWidth) / static_cast<double>(per_row);
  for (const Band& band : bands) {
    const std::size_t row = band.first / per_row;
    add_band(job, band,
             {.x = static_cast<double>(band.first % per_row) * width,
              .y = static_cast<double>(row) * (kCell + 1),
              .width = static_cast<double>(band.count) * width,
              .height = kCell},
             page);
  }
  page += "</svg>\n";
}

void add_groups(const JobStatus& job, std::string& page) {
  page += "<ul class=\"states\">\n";
  for (const StateGroup& group : groups_by_state(job)) {
    const StateStyle style = style_of(group.state);
    const std::string ranges = ranges_text(group);
    add(page, "<li><span class=\"key {}\" aria-hidden=\"true\">{}</span> {}: {}, {}{}</li>\n",
        style.css_class, style.sign, shown(group.state, kMostState), counted(group.nodes, "node"),
        counted(static_cast<std::size_t>(group.ranks), "worker"),
        ranges.empty() ? "" : fmt::format(" ({})", ranges));
  }
  page += "</ul>\n";
}

// Those that the cells need; more than the page can have if there is no room.
std::size_t cells_of(const JobStatus& job) {
  if (job.seats.size() > kMostNodesWithCells) return kMostCells + 1;
  std::size_t cells = 0;
  for (const SeatStatus& seat : job.seats)
    cells += static_cast<std::size_t>(std::max(seat.workers, 0));
  return cells;
}

}  // namespace

void add_rank_grid(const JobStatus& job, std::size_t& cells, std::string& page) {
  if (job.seats.empty()) return;
  const std::size_t needed = cells_of(job);
  if (needed <= cells) {
    cells -= needed;
    add_cells(job, page);
  } else {
    add_bands(job, cells, page);
  }
  add_groups(job, page);
}

}  // namespace ddprun::http
