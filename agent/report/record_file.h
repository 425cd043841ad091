// Writes a record for others to read: an error file, or --error-report. A regular file appears
// whole or not at all. If the path is something else (a device, a FIFO, a link), the text is
// written to it. It stays what it is. This file knows nothing of what a record says. File system
// shell; blocks its thread for kRecordWait at most. No state; any thread.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddprun::agent {

// How long write_record() waits for a reader of a FIFO or terminal that is slow. The launcher
// cannot end in that time.
inline constexpr std::chrono::milliseconds kRecordWait{2000};

// Tells whether write_record() would probably succeed; nothing is written. Errors
// (kInvalidArgument) are the reason alone, without the path.
Result<void> can_write_record(const std::string& path);

// Writes `text` to `path`. A regular file, or one that is not there yet, gets its new content by a
// rename. So a reader never sees half of it. Anything else is opened, links are followed, and the
// text is written to it. A rename by root would replace /dev/null itself. It may be the file of our
// own stdout or stderr (/dev/stdout). Then the text is added behind what was printed. A FIFO that
// nobody reads is an error at once. A file that another user has put into a folder that others may
// write is replaced and never written to. Errors (kSystem) name the path.
Result<void> write_record(const std::string& path, std::string_view text);

}  // namespace ddprun::agent
