// For fuzzers of Protobuf messages. Protobuf has a line of log for each text that is no UTF-8,
// which is most of them.
#include <google/protobuf/stubs/logging.h>

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}
