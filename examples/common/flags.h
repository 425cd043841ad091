// The command line of an example: what it takes, and the values that were given. One table for
// parsing and for --help, so that the two cannot differ. Pure: it prints nothing and ends nothing.
//
//   int epochs = 5;
//   Flags flags("Trains a net.");
//   flags.count("--epochs", epochs, "passes over the data (5)");
//   auto taken = flags.parse({"--epochs=3"});
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace ddprun::examples {

// Larger numbers are typing errors. The first layer's activations of 100,000 digits are 8 GB.
inline constexpr int kMaxCount = 100'000;

class Flags {
 public:
  // `about`: what the program does, for --help.
  explicit Flags(std::string about);

  // Each adds a flag. The value goes into the variable, which must live until parse() has returned;
  // what it holds before is the default.
  void count(const std::string& name, int& into, const std::string& help);  // from 1
  void rate(const std::string& name, double& into, const std::string& help);
  void seed(const std::string& name, std::uint64_t& into, const std::string& help);
  void path(const std::string& name, std::filesystem::path& into, const std::string& kind,
            const std::string& help);  // kind: "folder" or "file"
  void word(const std::string& name, std::string& into, const std::vector<std::string>& accepted,
            const std::string& help);
  // Text that `store` takes: false if it is not accepted. `value`: its placeholder in the help.
  void text(const std::string& name, const std::string& value, const std::string& accepted,
            const std::string& help, std::function<bool(const std::string&)> store) {
    flags_.push_back({name, value, accepted, help, std::move(store)});
  }
  // --weights-key, of a program that loads a checkpoint; not empty.
  void weights_key(std::string& into) {
    flags_.push_back(
        {"--weights-key", "KEY", "a key",
         "where the checkpoint has the weights, as model_ema or state_dict.net (searched for)",
         [&into](const std::string& text) { return !(into = text).empty(); }});
  }
  void on(const std::string& name, bool& into, const std::string& help);  // takes no value

  // Takes arguments without the program's name: `--flag value` and `--flag=value`; the last of a
  // repeated flag counts. The error is one line: the flag, the value and what is accepted.
  Result<void> parse(const std::vector<std::string>& arguments);

  bool asks_for_help() const { return help_; }
  std::string help_text() const;  // ends in a newline

 private:
  struct Flag {
    std::string name;
    std::string value;     // its placeholder in the help; empty: the flag takes no value
    std::string accepted;  // completes "expected …"
    std::string help;
    std::function<bool(const std::string&)> store;  // false: not accepted
  };

  Result<void> take(std::vector<std::string>::const_iterator& rest,
                    std::vector<std::string>::const_iterator end);

  std::string about_;
  std::vector<Flag> flags_;
  bool help_ = false;
};

}  // namespace ddprun::examples
