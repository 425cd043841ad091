// A record for others to read: the file appears whole or not at all. No state; any thread.
#pragma once

#include <string>
#include <string_view>
#include <system_error>

namespace ddprun::worker {

// Writes `text` to `path`, in the place of what is there. An error changes nothing there.
std::error_code write_record_file(const std::string& path, std::string_view text);

}  // namespace ddprun::worker
