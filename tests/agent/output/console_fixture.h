// A console, and its reader in the same process: real pipes, one loop.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <string_view>

#include "agent/output/console.h"
#include "tests/agent/output/flushed.h"
#include "tests/support/temporary_folder.h"

namespace ddprun::agent {

// The other end of a console: a pipe that is read when the test says so.
class ScreenPipe {
 public:
  ScreenPipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    reader_ = FileHandle(ends[0]);
    writer_ = FileHandle(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  int writer() const { return writer_.get(); }
  void read_up_to(std::size_t bytes) {
    std::string part(bytes, '\0');
    const ssize_t got = ::read(reader_.get(), part.data(), part.size());
    if (got > 0) shown_.append(part, 0, static_cast<std::size_t>(got));
  }
  // Waits until so many bytes have been shown.
  void await_bytes(std::size_t bytes) {
    pollfd readable{reader_.get(), POLLIN, 0};
    while (read().size() < bytes && ::poll(&readable, 1, 10'000) > 0) {
    }
  }
  // Everything that has been shown, this call's included.
  const std::string& read() {
    std::array<char, 65536> buffer;
    ssize_t got = 0;
    while ((got = ::read(reader_.get(), buffer.data(), buffer.size())) > 0)
      shown_.append(buffer.data(), static_cast<std::size_t>(got));
    return shown_;
  }

 private:
  FileHandle reader_;
  FileHandle writer_;
  std::string shown_;
};

class ConsoleTest : public FolderTest {
 protected:
  FileHandle new_file(const std::string& name) const {
    return FileHandle(
        ::open((folder / name).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  }

  void poll() {
    loop.restart();
    loop.poll();
  }
  // Runs the loop until the lines ends like this.
  void await_shown(std::string_view end) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!terminal.read().ends_with(end) && std::chrono::steady_clock::now() < deadline) {
      loop.restart();
      loop.run_one_for(std::chrono::milliseconds(100));
    }
    EXPECT_TRUE(terminal.read().ends_with(end));
  }

  asio::io_context loop{1};
  ScreenPipe terminal;
  Console console{loop, terminal.writer()};
};

}  // namespace ddprun::agent
