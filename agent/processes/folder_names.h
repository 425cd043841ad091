// The names in a folder, as readdir(3) gives them. /dev/shm may hold 12,000 of others, and
// std::filesystem makes a path of each. No throw. Any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

// Those that begin with `prefix`, without `.` and `..`, in no order. On an error, those that were
// read until then: none if there is no such folder.
std::vector<std::string> names_in(const std::string& folder, std::string_view prefix = {});

}  // namespace ddprun::agent
