// Leaves a record for others to read: an error file, --error-report. A file appears whole or not at
// all; what is no file (a device, a FIFO, a link) is written through and stays what it is. File
// system shell; waits at most kRecordWait for a FIFO's reader. Any thread.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "proto/result.h"

namespace ddprun::agent {

// For a reader of a FIFO or terminal that is there and slow; the launcher's end waits for it.
inline constexpr std::chrono::milliseconds kRecordWait{2000};

// Whether write_record() would probably succeed. Errors are the reason alone, without the path.
Result<void> can_write_record(const std::string& path);

// Writes `text` to `path`. An existing regular file is replaced, by a rename: a reader never sees
// half a file. Anything else that is there is opened, links followed, and written to: root's rename
// would replace /dev/null itself. Where that is what our stdout or stderr is on (/dev/stdout), the
// text goes behind what was printed. Errors name the path.
Result<void> write_record(const std::string& path, std::string_view text);

}  // namespace ddprun::agent
