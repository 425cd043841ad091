#include "daemon/manual/help_page.h"

#include <gtest/gtest.h>

namespace ddprun::daemon {
namespace {

constexpr HelpPage kPage{.name = "prog",
                         .section = 8,
                         .summary = "do it",
                         .version = "1.2",
                         .see_also = ".BR other (1)"};
constexpr std::string_view kHead =
    ".TH PROG 8 \"\" \"ddprun 1.2\" \"System Administration\"\n"
    ".SH NAME\nprog \\- do it\n.SH SYNOPSIS\n.B prog\n[OPTION]... FILE\n.SH DESCRIPTION\n";
constexpr std::string_view kEnd = ".SH SEE ALSO\n.BR other (1)\n";

std::string page(const std::string& help) {
  const std::string text = help_page(kPage, "usage: prog [OPTION]... FILE\n\n" + help);
  EXPECT_EQ(text.substr(0, kHead.size()), kHead);
  EXPECT_TRUE(text.ends_with(kEnd));
  return text.substr(kHead.size(), text.size() - kHead.size() - kEnd.size());
}

TEST(HelpPage, KeepsParagraphsAndTheirExamples) {
  EXPECT_EQ(page("Serves it. Type\n  prog --now\nor wait.\n\nMore.\n"),
            "Serves it. Type\n.PP\n.RS\n.B prog \\-\\-now\n.RE\n.PP\nor wait.\n.PP\nMore.\n");
}

TEST(HelpPage, TakesEntriesWithoutATitleForOptions) {
  EXPECT_EQ(
      page("Text.\n\n  --far=N    as far\n             as this\n  --tls-ca=PATH, --tls-key=PATH\n"
           "             files\n"),
      "Text.\n.SH OPTIONS\n.TP\n.B \\-\\-far=N\nas far\nas this\n"
      ".TP\n.B \\-\\-tls\\-ca=PATH, \\-\\-tls\\-key=PATH\nfiles\n");
}

TEST(HelpPage, BeginsASectionAtEachTitle) {
  EXPECT_EQ(
      page("Text.\n\ncommands:\n  stop JOB  end it\nJOB is a name.\n\noptions:\n  -h  this\n\n"
           "exit codes: 0 good; 2 bad\n"),
      "Text.\n.SH COMMANDS\n.TP\n.B stop JOB\nend it\n.PP\nJOB is a name.\n"
      ".SH OPTIONS\n.TP\n.B \\-h\nthis\n.SH EXIT STATUS\n0 good; 2 bad\n");
  EXPECT_EQ(page("Text.\n\nexit codes:\n  0  good\n"), "Text.\n.SH EXIT STATUS\n.TP\n.B 0\ngood\n");
}

// A line that begins with a dot is no request.
TEST(HelpPage, ShowsWhatRoffWouldChange) {
  EXPECT_EQ(page("Text.\n\n  --a  .so x\n"), "Text.\n.SH OPTIONS\n.TP\n.B \\-\\-a\n\\&.so x\n");
}

}  // namespace
}  // namespace ddprun::daemon
