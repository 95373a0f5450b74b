// SPDX-License-Identifier: MIT
#include "dist/rank_launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/stop_signal.h"
#include "dist/meeting.h"
#include "dist/process_group_backend.h"

extern char** environ;

namespace dalle2 {
namespace {

using Clock = std::chrono::steady_clock;

/// What the ranks that are left have to report a failed one, to end after a polite request.
constexpr std::chrono::seconds kReportTime{10}, kStopTime{10};
constexpr std::chrono::milliseconds kPoll{50};
/// How long a rank may be stopped (SIGSTOP, not by a debugger). The others end sooner if they wait for
/// it; but nobody may, before all have met and after the last collective.
constexpr std::chrono::seconds kToldStopped{5}, kMostStopped{60};

/// One end of a pipe whose lines are passed on with a rank before them.
struct Output {
  int from = -1, to = -1;
  std::string begun;  ///< a line without its end
};

struct Process {
  int rank = 0;
  pid_t pid = 0;
  bool running = true;
  bool stopped = false, told_stopped = false;
  Clock::duration stopped_for{};  ///< while this process ran
  std::vector<Output> outputs;
};

void write_all(int file, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = write(file, text.data() + done, text.size() - done);
    if (count < 0 && errno != EINTR) return;
    if (count > 0) done += static_cast<size_t>(count);
  }
}

class Launch {
 public:
  Launch(int64_t processes, const std::vector<std::string>& command)
      : count_(processes), command_(command) {}

  ExitCode run() {
    for (int rank = 0; rank < count_; ++rank) start(rank);
    while (std::ranges::any_of(processes_, [](const Process& each) { return each.running; })) {
      pass_output();
      reap();
      forward_stop();
      end_the_stopped();
      end_the_rest();
    }
    pass_output();
    return exit_code_of(ends_);
  }

  void kill_all() {
    for (const Process& each : processes_) {
      if (each.running) kill(each.pid, SIGKILL);
    }
  }

 private:
  std::vector<std::string> environment_of(int rank) const {
    std::vector<std::string> variables;
    const auto set = [&](const std::string& name, const std::string& value) {
      std::erase_if(variables,
                    [&](const std::string& each) { return each.starts_with(name + "="); });
      variables.push_back(name + "=" + value);
    };
    for (char** each = environ; *each != nullptr; ++each) variables.emplace_back(*each);
    const std::string count = std::to_string(count_);
    set("RANK", std::to_string(rank));
    set("LOCAL_RANK", std::to_string(rank));
    set("WORLD_SIZE", count);
    set("LOCAL_WORLD_SIZE", count);
    set("MASTER_ADDR", "127.0.0.1");
    set("MASTER_PORT", std::to_string(store_.port()));
    set("TORCHELASTIC_USE_AGENT_STORE", "True");
    set("DALLE2_LAUNCHED", "1");
    return variables;
  }

  void start(int rank) {
    std::vector<std::string> variables = environment_of(rank);
    std::vector<char*> environment, arguments;
    for (std::string& each : variables) environment.push_back(each.data());
    environment.push_back(nullptr);
    std::vector<std::string> command = command_;
    for (std::string& each : command) arguments.push_back(each.data());
    arguments.push_back(nullptr);
    int out[2] = {-1, -1}, error[2] = {-1, -1};
    // Rank 0 has the terminal, if there is one.
    if (rank > 0 && (pipe2(out, O_CLOEXEC) != 0 || pipe2(error, O_CLOEXEC) != 0)) fail(rank);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) fail(rank);
    if (pid == 0) {
      // A group of its own: Ctrl-C goes to the parent, which passes it on once.
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (getppid() != parent) _exit(1);
      if (rank > 0) {
        dup2(out[1], STDOUT_FILENO);
        dup2(error[1], STDERR_FILENO);
      }
      execve("/proc/self/exe", arguments.data(), environment.data());
      _exit(127);
    }
    Process process{.rank = rank, .pid = pid, .outputs = {}};
    if (rank > 0) {
      close(out[1]);
      close(error[1]);
      process.outputs = {{out[0], STDOUT_FILENO, ""}, {error[0], STDERR_FILENO, ""}};
      for (const Output& output : process.outputs) {
        fcntl(output.from, F_SETFL, fcntl(output.from, F_GETFL) | O_NONBLOCK);
      }
    }
    processes_.push_back(std::move(process));
  }

  [[noreturn]] void fail(int rank) {
    const std::string why = errno_text(errno);
    kill_all();
    throw ResourceError("--nproc-per-node: rank {} cannot be started: {}", rank, why);
  }

  void pass_output() {
    std::vector<pollfd> polled;
    for (const Process& process : processes_) {
      for (const Output& output : process.outputs) {
        if (output.from >= 0) polled.push_back({output.from, POLLIN, 0});
      }
    }
    poll(polled.data(), polled.size(), static_cast<int>(kPoll.count()));
    for (Process& process : processes_) {
      for (Output& output : process.outputs) pass_lines(process.rank, output);
    }
  }

  static void pass_lines(int rank, Output& output) {
    if (output.from < 0) return;
    char buffer[4096];
    ssize_t count = 0;
    while ((count = read(output.from, buffer, sizeof buffer)) > 0) {
      output.begun.append(buffer, static_cast<size_t>(count));
    }
    const bool closed = count == 0;
    if (closed && !output.begun.empty() && output.begun.back() != '\n') output.begun += '\n';
    // Rank 0's live line may be there, which it draws again.
    const char* clear = is_live_terminal(output.to) ? "\r\x1b[K" : "";
    size_t begin = 0;
    for (size_t end; (end = output.begun.find('\n', begin)) != std::string::npos; begin = end + 1) {
      write_all(
          output.to,
          fmt::format("{}[rank {}] {}", clear, rank, output.begun.substr(begin, end + 1 - begin)));
    }
    output.begun.erase(0, begin);
    if (closed) {
      close(output.from);
      output.from = -1;
    }
  }

  void reap() {
    for (Process& each : processes_) {
      int status = 0;
      if (!each.running || waitpid(each.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) != each.pid)
        continue;
      if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
        each.stopped = WIFSTOPPED(status);
        each.stopped_for = {};
        continue;
      }
      each.running = false;
      RankEnd end{.rank = each.rank};
      if (WIFSIGNALED(status) && is_stop_signal(WTERMSIG(status)) && !failed_at_) {
        end.code = static_cast<int>(ExitCode::kStopped);  // it had only begun to start
      } else if (WIFSIGNALED(status)) {
        end.signal = WTERMSIG(status);
        log_error("dist",
                  "rank {} was killed by signal {} ({})",
                  each.rank,
                  end.signal,
                  strsignal(end.signal));
      } else {
        end.code = WEXITSTATUS(status);
      }
      ends_.push_back(end);
      if (end.code == static_cast<int>(ExitCode::kStopped)) tell_of_stop();
      const bool failed = end.signal != 0 || (end.code != 0 && end.code != 75);
      if (failed && !failed_at_) failed_at_ = Clock::now();
    }
  }

  /// Those that have not met the stopped one yet would wait for it. After that they agree on a stop.
  void tell_of_stop() {
    if (!std::exchange(told_of_stop_, true)) store_.open()->set(kStoppedKey, "1");
  }

  /// A second signal ends this process at once, and by that the ranks.
  void forward_stop() {
    if (stop_requested() == 0 || forwarded_ != 0) return;
    forwarded_ = stop_requested();
    for (const Process& each : processes_) {
      if (each.running) kill(each.pid, forwarded_);
    }
  }

  /// A suspended job stops this process too: that time does not count.
  void end_the_stopped() {
    const auto now = Clock::now();
    const auto passed = std::min<Clock::duration>(now - looked_at_, 4 * kPoll);
    looked_at_ = now;
    for (Process& each : processes_) {
      if (!each.running || !each.stopped) continue;
      each.stopped_for += passed;
      if (each.stopped_for > kToldStopped && !std::exchange(each.told_stopped, true)) {
        log_warning(
            "dist",
            "rank {} is stopped (SIGSTOP): it will be ended unless it continues (SIGCONT) within "
            "{} s",
            each.rank,
            kMostStopped.count());
      }
      if (each.stopped_for > kMostStopped) kill(each.pid, SIGKILL);
    }
  }

  void end_the_rest() {
    if (!failed_at_) return;
    const auto since = Clock::now() - *failed_at_;
    const int signal = since > kReportTime + kStopTime ? SIGKILL
                       : since > kReportTime           ? SIGTERM
                                                       : 0;
    if (signal == 0 || signal == sent_) return;
    sent_ = signal;
    for (const Process& each : processes_) {
      if (each.running) kill(each.pid, signal);
    }
  }

  const int64_t count_;
  const std::vector<std::string>& command_;
  StoreServer store_;
  std::vector<Process> processes_;
  std::vector<RankEnd> ends_;
  std::optional<Clock::time_point> failed_at_;
  Clock::time_point looked_at_ = Clock::now();
  int forwarded_ = 0, sent_ = 0;  // signals
  bool told_of_stop_ = false;
};

}  // namespace

ExitCode exit_code_of(const std::vector<RankEnd>& ends) {
  bool stopped = false, lost = false;
  for (const RankEnd& end : ends) {
    if (end.signal != 0 || end.code == static_cast<int>(ExitCode::kNetwork)) {
      lost = true;
    } else if (end.code == static_cast<int>(ExitCode::kStopped)) {
      stopped = true;
    } else if (end.code != 0) {
      return static_cast<ExitCode>(end.code);
    }
  }
  return lost ? ExitCode::kNetwork : stopped ? ExitCode::kStopped : ExitCode::kDone;
}

ExitCode launch_ranks(int64_t processes, const std::vector<std::string>& command) {
  return Launch(processes, command).run();
}

}  // namespace dalle2
