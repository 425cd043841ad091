#include "proto/worker_page.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace ddprun {
namespace {

// The second page of a file, by a path with a colon in it.
TEST(WorkerPage, IsWrittenThroughTheFileThatTheVariableNames) {
  const std::string path = testing::TempDir() + "pages:" + std::to_string(::getpid());
  std::ofstream(path) << std::string(2 * kWorkerPageBytes, '\0');
  ::setenv(kWorkerPageVariable, ("128:256:0:" + path).c_str(), 1);
  note_first_line(own_worker_page());
  count_step(own_worker_page());
  count_step(own_worker_page());
  std::ifstream file(path, std::ios::binary);
  std::uint64_t words[32];
  file.read(reinterpret_cast<char*>(words), sizeof(words));
  EXPECT_EQ(words[0], 0U);
  EXPECT_EQ(words[16], 2U);         // steps
  EXPECT_GE(words[17], words[18]);  // the last one, the first one
  EXPECT_GE(words[18], words[19]);  // the first line
  EXPECT_GT(words[19], 0U);
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace ddprun
