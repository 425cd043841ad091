// Folders of text in which the kernel and drivers describe devices: /sys, /proc, and the names in
// /dev. Reads and decides nothing. Any thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

// A file without the blanks at its end. Empty if it cannot be read.
std::string read_text(const std::filesystem::path& path);

// Sorted: the kernel lists a folder in no order, and PCI addresses must be in theirs. None if there
// is no such folder.
std::vector<std::string> names_in(const std::filesystem::path& folder);

// N of each name `prefix`N in the folder, ascending.
std::vector<int> numbers_in(const std::filesystem::path& folder, std::string_view prefix);

// The rest of the line that begins with `name` and `separator`, without blanks around it. Empty if
// there is no such line.
std::string value_in(std::string_view text, std::string_view name, char separator);

// The name of the driver of a device: its folder in /sys has `uevent` with DRIVER=, or a link
// `driver`. Empty if neither says it.
std::string driver_of(const std::filesystem::path& device);

// False also where nobody can tell: a folder above may not be searched.
bool is_there(const std::filesystem::path& path);

// Whether this process may read and write the file.
bool may_open(const std::filesystem::path& path);

}  // namespace ddprun::launcher
