// The nodes and ranks of a job as a drawing. A small job has a cell for each rank. In a large one,
// nodes of the same state that follow each other are one band. Below it the states are counted in
// words. Each cell and band has a title. For a screen reader it is an item of a list. Pure; any
// thread.
#pragma once

#include <cstddef>
#include <string>

#include "rendezvous/control/pages/status_report.h"

namespace ddprun::http {

// A job with more nodes has no cell for each rank.
inline constexpr std::size_t kMostNodesWithCells = 64;
// All jobs of a page together have room for so many cells and bands.
inline constexpr std::size_t kMostCells = 1024;

// `cells`: the room that is left on the page; what is drawn is taken off. The states of a job
// without room are only counted.
void add_rank_grid(const JobStatus& job, std::size_t& cells, std::string& page);

}  // namespace ddprun::http
