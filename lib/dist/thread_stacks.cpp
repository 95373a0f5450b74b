// SPDX-License-Identifier: MIT
#include "dist/thread_stacks.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

namespace dalle2 {
namespace {

constexpr int kMostFrames = 40;
/// LibTorch has dozens of idle threads on a large machine.
constexpr int kMostThreads = 32;
std::atomic<bool> written = false;

/// Runs on the thread that is asked. Only what is safe in a signal handler, once backtrace() has
/// loaded its library.
void write_stack(int) {
  void* frames[kMostFrames];
  const int count = backtrace(frames, kMostFrames);
  backtrace_symbols_fd(frames, count, STDERR_FILENO);
  written = true;
}

std::string name_of(const std::string& thread) {
  char name[32] = "";
  if (std::FILE* file = std::fopen(("/proc/self/task/" + thread + "/comm").c_str(), "r")) {
    if (std::fgets(name, sizeof name, file) == nullptr) name[0] = '\0';
    std::fclose(file);
  }
  std::string text = name;
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

void ask(const std::string& thread) {
  std::fprintf(stderr, "thread %s (%s):\n", thread.c_str(), name_of(thread).c_str());
  std::fflush(stderr);
  written = false;
  syscall(SYS_tgkill, getpid(), std::atoi(thread.c_str()), SIGRTMIN + 5);
  for (int wait = 0; wait < 50 && !written; ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (!written) std::fprintf(stderr, "  does not answer\n");
}

}  // namespace

void print_thread_stacks() noexcept {
  try {
    void* first[1];
    backtrace(first, 1);
    struct sigaction action = {};
    action.sa_handler = write_stack;
    action.sa_flags = SA_RESTART;
    sigaction(SIGRTMIN + 5, &action, nullptr);
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      const std::string thread = entry.path().filename().string();
      if (std::atoi(thread.c_str()) == gettid()) continue;  // it writes this
      if (count++ == kMostThreads) break;
      ask(thread);
    }
  } catch (const std::exception&) {  // the report itself is written
  }
}

}  // namespace dalle2
