// Counts LibTorch's operations by name.
#pragma once

#include <ATen/record_function.h>

#include <map>
#include <memory>
#include <string>

namespace ddprun::worker {

// Counts the operations of this thread by name while it lives.
class CountedOperations {
 public:
  CountedOperations() {
    counts().clear();
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& of)
                                       -> std::unique_ptr<at::ObserverContext> {
          ++counts()[of.name()];
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  CountedOperations(const CountedOperations&) = delete;
  CountedOperations& operator=(const CountedOperations&) = delete;
  CountedOperations(CountedOperations&&) = delete;
  CountedOperations& operator=(CountedOperations&&) = delete;
  ~CountedOperations() { at::removeCallback(handle_); }

  int of(const std::string& name) const {
    const auto found = counts().find("aten::" + name);
    return found == counts().end() ? 0 : found->second;
  }

 private:
  // LibTorch takes no closures.
  static std::map<std::string, int>& counts() {
    thread_local std::map<std::string, int> counts;
    return counts;
  }

  at::CallbackHandle handle_;
};

}  // namespace ddprun::worker
