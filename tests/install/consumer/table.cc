// Prints the codes of the second column of a table: one for each kind of work.
#include <ddprun/readers.h>

#include <cstdio>
#include <exception>

int main(int argc, char** argv) {
  using ddprun::readers::ColumnKind;
  if (argc != 2) return 2;
  try {
    const auto table = ddprun::readers::read_csv(
        argv[1], {.columns = {{"age", ColumnKind::kNumber}, {"work", ColumnKind::kCategory}}});
    for (const auto code : ddprun::readers::TableScale(table).scale(table).codes)
      std::printf("%d ", static_cast<int>(code));
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
