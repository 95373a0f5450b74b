// SPDX-License-Identifier: MIT
// dalle2-train: trains the parts of a DALLE2 system from a JSON file.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "base/stop_signal.h"
#include "base/this_process.h"
#include "command_options.h"

namespace {

constexpr int kErrorLines = 60;

/// Errors of libraries can carry a page of stack frames; what a person needs stands first.
std::string first_lines(std::string text, int lines) {
  for (const char* frames : {"\nException raised from", "\nframe #"})
    text = text.substr(0, text.find(frames));
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

constexpr const char* kNoMemory =
    "out of memory: lower data.batch_size or train.max_batch_size, or allow the process more "
    "(`ulimit -v`, the memory limit of the job)";

/// Where memory ends in a thread of a library or within a destructor, nothing can catch it.
[[noreturn]] void end_at_terminate() {
  try {
    if (std::current_exception()) std::rethrow_exception(std::current_exception());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "error: %s\n", kNoMemory);
    std::_Exit(static_cast<int>(dalle2::ExitCode::kResource));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "terminated by: %s\n", error.what());
  } catch (...) {
  }
  std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  using dalle2::ExitCode;
  dalle2::install_stop_signals();  // a signal that comes earlier ends the process
  std::set_terminate(end_at_terminate);
  std::setvbuf(
      stdout, nullptr, _IOLBF, BUFSIZ);  // into a pipe, too: a reader sees each line at once
  try {
    return dalle2::run_command_line(argc, argv);
  } catch (const dalle2::Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::kResource, kNoMemory);
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again)
      return fail(ExitCode::kFailed, error.what());
    return fail(ExitCode::kResource,
                "a thread cannot be started: this user or container may have no more processes and "
                "threads\n  Raise the limit (`ulimit -u`, pids.max of the container), or lower "
                "data.num_workers and OMP_NUM_THREADS.");
  } catch (const std::exception& error) {
    const std::string message = error.what();
    if (dalle2::says_out_of_memory(message)) {
      return fail(
          ExitCode::kResource,
          "out of memory: " + first_lines(message, 3) +
              "\n  Lower data.batch_size, set train.max_batch_size, turn off train.cuda_graph, or use a "
              "smaller model.");
    }
    return fail(ExitCode::kFailed, message);
  }
}
