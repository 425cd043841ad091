// The memory cgroup of this process: its files, and the memory that is left before a limit is met.
// Versions 1 and 2 of the controller. Reads files; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ddprun {

// A cgroup's folder. Versions 1 and 2 of the memory controller name the files in it differently.
struct MemoryFolder {
  std::string path;
  bool v2 = false;
};

// This process's memory cgroup, from lines "number:controllers:path" (cgroups(7)). A version 1 line
// names the controller. The version 2 line names none, and counts only if no other one has memory.
std::string own_memory_cgroup();

// Its folder. systemd mounts the controller in one of these places: version 1 alone, version 2
// alone, or both (cgroups(7)). In a container the path of another cgroup may not exist.
std::optional<MemoryFolder> memory_folder(const std::string& cgroup);

// The number in a cgroup's file. Nothing for no limit: "max" in version 2, a huge one in version 1.
std::optional<std::uint64_t> read_cgroup_number(const std::string& path);

// Bytes that new processes can use without swapping or meeting a limit. It is the host's
// MemAvailable (proc_meminfo(5)), or the rest in our cgroup or one above it, whichever is less.
// File pages count as left: the kernel drops them first. Nothing if it cannot be known.
std::optional<std::uint64_t> memory_left();

// The same, of this cgroup and those above it, also the uppermost one: in a container that has the
// limit. `cgroup`: as own_memory_cgroup() answers, and what `folder.path` ends with.
std::optional<std::uint64_t> memory_left_in(const MemoryFolder& folder, std::string cgroup);

}  // namespace ddprun
