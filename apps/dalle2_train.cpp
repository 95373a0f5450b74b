// SPDX-License-Identifier: MIT
// dalle2-train: trains the parts of a DALLE2 system from a JSON file.
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "base/stop_signal.h"
#include "base/this_process.h"
#include "command_line.h"

namespace {

constexpr int kErrorLines = 60;

/// Errors of libraries can carry a page of stack frames; what a person needs stands first.
std::string first_lines(std::string text, int lines) {
  for (const char* frames : {"\nException raised from", "\nframe #"}) {
    text = text.substr(0, text.find(frames));
  }
  size_t end = 0;
  for (int i = 0; i < lines; ++i) {
    end = text.find('\n', end);
    if (end == std::string::npos) return text;
    ++end;
  }
  return text.substr(0, end) + "...";
}

int fail(dalle2::ExitCode code, const std::string& message) {
  std::fflush(stdout);
  dalle2::log_error("", "{}", first_lines(message, kErrorLines - 1));
  return static_cast<int>(code);
}

/// The constructors of the libraries take a good part of a second before main: a signal meanwhile
/// is to be heard too.
void install_early(int /*argc*/, char** /*argv*/, char** /*environment*/) {
  dalle2::install_stop_signals();
}
[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kInstallEarly)(int, char**, char**) = install_early;

}  // namespace

int main(int argc, char** argv) {
  using dalle2::ExitCode;
  std::setvbuf(
      stdout, nullptr, _IOLBF, BUFSIZ);  // into a pipe, too: a reader sees each line at once
  try {
    return dalle2::run_command_line(argc, argv);
  } catch (const dalle2::Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::kResource,
                "out of memory: lower data.batch_size or train.max_batch_size");
  } catch (const std::exception& error) {
    const std::string message = error.what();
    if (dalle2::says_out_of_memory(message)) {
      return fail(
          ExitCode::kResource,
          first_lines(message, 3) +
              "\n  Lower data.batch_size, set train.max_batch_size, or use a smaller model.");
    }
    return fail(ExitCode::kFailed, message);
  }
}
