// The record that DataParallel::log_record() gives. It tells of the options, the model, the buckets
// and the latest pass.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace ddprun {

// A record of a DataParallel, under the keys of PyTorch's DDPLoggingData.
struct LogRecord {
  std::map<std::string, std::string> texts;     // names, sizes and lists of numbers
  std::map<std::string, std::int64_t> numbers;  // times in nanoseconds; flags as 0 and 1

  // Returns one line, an object with all keys.
  std::string to_json() const;
};

}  // namespace ddprun
