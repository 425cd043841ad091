// ddprun_manual FILE: writes the manual page. Run by the build.
#include <cstdio>
#include <fstream>

#include "launcher/manual/manual_page.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: ddprun_manual FILE\n", stderr);
    return 2;
  }
  std::ofstream file(argv[1], std::ios::binary);
  file << ddprun::launcher::manual_page(DDPRUN_VERSION);
  file.close();
  if (file) return 0;
  std::fprintf(stderr, "ddprun_manual: %s: cannot be written\n", argv[1]);
  return 1;
}
