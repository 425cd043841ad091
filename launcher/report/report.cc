#include "launcher/report/report.h"

#include <fmt/format.h>

#include <string_view>

#include "agent/report/record_file.h"
#include "launcher/report/read_histories.h"
#include "launcher/report/report_page.h"
#include "launcher/report/report_text.h"
#include "launcher/report/run_report.h"

namespace ddprun::launcher {
namespace {

constexpr std::string_view kReport = "report";
constexpr std::string_view kHtml = "--html";

Error usage(const std::string& word) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("report{}: expected `report [--json] [--html FILE] LOGDIR…`",
                      word.empty() ? "" : " " + word)};
}

Result<ReportCall> parse_call(const std::vector<std::string>& words) {
  ReportCall call;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--json") {
      call.json = true;
    } else if (word == kHtml && i + 1 < words.size()) {
      call.html = words[++i];
    } else if (word.starts_with("--html=")) {
      call.html = word.substr(kHtml.size() + 1);
    } else if (word.starts_with('-')) {
      return usage(word);
    } else {
      call.folders.push_back(word);
    }
    if (word.starts_with(kHtml) && call.html.empty()) return usage(word);
  }
  if (call.folders.empty()) return usage("");
  return call;
}

}  // namespace

std::optional<Result<ReportCall>> report_call(const Options& options, const CommandFacts& files) {
  if (options.script != kReport || options.mode != Mode::kScript) return std::nullopt;
  const FileKind kind = files.inspect(options.script).kind;
  if (kind != FileKind::kMissing && kind != FileKind::kDirectory) return std::nullopt;
  return parse_call(options.script_args);
}

Result<std::string> run_report(const ReportCall& call) {
  auto nodes = read_histories(call.folders);
  if (!nodes) return nodes.error();
  const RunReport report = make_report(*std::move(nodes));
  if (!call.html.empty()) {
    const auto written = agent::write_record(call.html, report_page(report));
    if (!written) return Error(written.error().code(), "--html: " + written.error().message());
  }
  return call.json ? report_json(report) : report_text(report);
}

}  // namespace ddprun::launcher
