#include "base/net/http/escape.h"

#include <gtest/gtest.h>

namespace ddprun::http {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

TEST(Escape, LeavesWellFormedTextAsItIs) {
  for (const std::string text : {"", "n1", "ä€😀", "\xEF\xBF\xBD", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(valid_utf8(text), text);
  }
}

TEST(Escape, ReplacesEachByteThatIsNoUtf8) {
  EXPECT_EQ(valid_utf8("a\xFF"
                       "b"),
            "a" + kBad + "b");
  EXPECT_EQ(valid_utf8("\xC3"), kBad) << "cut in the middle";
  EXPECT_EQ(valid_utf8("\xE2\x82"), kBad + kBad);
  EXPECT_EQ(valid_utf8("\xC0\xAF"), kBad + kBad) << "an overlong slash";
  EXPECT_EQ(valid_utf8("\xE0\x80\xAF"), kBad + kBad + kBad);
  EXPECT_EQ(valid_utf8("\xED\xA0\x80"), kBad + kBad + kBad) << "a surrogate";
  EXPECT_EQ(valid_utf8("\xF4\x90\x80\x80"), kBad + kBad + kBad + kBad) << "beyond U+10FFFF";
}

TEST(Escape, LeavesNoMarkup) {
  EXPECT_EQ(escape_html("<script>alert('a\"&b')</script>"),
            "&lt;script&gt;alert(&#39;a&quot;&amp;b&#39;)&lt;/script&gt;");
  EXPECT_EQ(escape_html(std::string("a\0b\x1B[31m\x7F", 9)),
            "a" + kBad + "b" + kBad + "[31m" + kBad);
  EXPECT_EQ(escape_html("one\n\ttwo"), "one\n\ttwo");
}

TEST(Escape, LeavesNoEndOfALabel) {
  EXPECT_EQ(escape_label("a\"} 1\nddprun_x 2\\"), "a\\\"} 1\\nddprun_x 2\\\\");
  EXPECT_EQ(escape_label("\xFF"), kBad);
  EXPECT_EQ(escape_label("a\x1b[2J\r\u009b\u202e b"),
            R"(a\\x1b[2J\\x0d\\xc2\\x9b\\xe2\\x80\\xae b)");
}

}  // namespace
}  // namespace ddprun::http
