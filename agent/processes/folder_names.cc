#include "agent/processes/folder_names.h"

#include <dirent.h>

#include <memory>

namespace ddprun::agent {

std::vector<std::string> names_in(const std::string& folder, std::string_view prefix) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), &::closedir);
  // NOLINTNEXTLINE(concurrency-mt-unsafe): each stream has one reader (readdir(3))
  while (const dirent* entry = open ? ::readdir(open.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != ".." && name.starts_with(prefix)) names.emplace_back(name);
  }
  return names;
}

}  // namespace ddprun::agent
