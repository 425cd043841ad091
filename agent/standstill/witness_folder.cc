#include "agent/standstill/witness_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/regular_file.h"

namespace ddprun::agent {
namespace {

// So many later questions may have been asked meanwhile. A worker can write the number in its page.
constexpr std::uint64_t kMostLater = 8;

}  // namespace

bool has_witness(const WorkerPages* pages, const Children& children, int local_rank) {
  const pid_t pid = children.pid_of(local_rank);
  return pages != nullptr && pid != 0 &&
         pages->page(local_rank).witness == static_cast<std::uint64_t>(pid);
}

std::string witness_answer_path(const std::string& folder, const WorkerPages& pages, int local_rank,
                                std::uint64_t number) {
  const auto path = [&](std::uint64_t one) {
    return fmt::format("{}/witness_{}.{}", folder, local_rank, one);
  };
  const std::uint64_t last = std::min(pages.page(local_rank).asked.load(), number + kMostLater);
  for (std::uint64_t one = number; one <= last; ++one)
    if (::access(path(one).c_str(), R_OK) == 0) return path(one);
  return path(number);
}

std::optional<WitnessAnswer> read_witness_answer(const std::string& folder,
                                                 const WorkerPages& pages, int local_rank,
                                                 std::uint64_t number) {
  return parse_witness_answer(
      read_file_start(witness_answer_path(folder, pages, local_rank, number), kMostAnswerBytes));
}

}  // namespace ddprun::agent
