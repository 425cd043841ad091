// write_daemon_manuals FOLDER: writes ddprund.8 and ddpctl.1. Run by the build.
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "daemon/ctl_options.h"
#include "daemon/daemon_options.h"
#include "daemon/manual/help_page.h"

namespace {

using namespace ddprun::daemon;

bool write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) std::fprintf(stderr, "write_daemon_manuals: %s: cannot be written\n", path.c_str());
  return static_cast<bool>(file);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: write_daemon_manuals FOLDER\n", stderr);
    return 2;
  }
  const std::string folder = argv[1];
  const auto daemon = parse_daemon({"--help"}, read_config);
  const auto ctl =
      parse_ctl({"--help"}, [](std::string_view) { return std::optional<std::string>(); });
  const HelpPage daemon_page{.name = "ddprund",
                             .section = 8,
                             .summary = "serve the rendezvous of many distributed training jobs",
                             .version = DDPRUN_VERSION,
                             .see_also = ".BR ddprun (1),\n.BR ddpctl (1)"};
  const HelpPage ctl_page{.name = "ddpctl",
                          .section = 1,
                          .summary = "look at distributed training jobs and change them",
                          .version = DDPRUN_VERSION,
                          .see_also = ".BR ddprun (1),\n.BR ddprund (8)"};
  const bool is_written =
      write(folder + "/ddprund.8", help_page(daemon_page, std::get<DaemonAnswer>(daemon).text)) &&
      write(folder + "/ddpctl.1", help_page(ctl_page, std::get<CtlAnswer>(ctl).text));
  return is_written ? 0 : 1;
}
