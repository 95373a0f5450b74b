// SPDX-License-Identifier: MIT
// SIGTERM, SIGINT, SIGUSR1, SIGUSR2 and SIGHUP ask a run to save and stop. A second signal, more
// than a second later, ends it at once. SIGHUP counts only if it was not ignored at the start
// (nohup). RunSession (run/loop/run_session.h) acts on the request.
#pragma once

#include <string>

namespace dalle2 {

/// Installs the handlers, and ignores SIGPIPE and SIGXFSZ: writing to a closed pipe, or beyond the size that a file may have,
/// becomes an error. A signal that comes earlier ends the process.
void install_stop_signals();

/// Restores what the signals did before install_stop_signals(), for work that they may end at once.
/// A signal that came in between is sent again.
void uninstall_stop_signals();

/// Whether `number` is one of the signals that ask for a stop.
bool is_stop_signal(int number);

/// The signal that asked for a stop, or 0.
int stop_requested();

/// "SIGTERM" for 15; "signal 99" for a number without a name; for 0, which stop_requested() is where
/// only another rank was signalled, "a stop signal to another process".
std::string signal_name(int number);

/// @throws StoppedError that names the signal
[[noreturn]] void throw_stopped();

/// Forgets a request (tests).
void clear_stop_request();

}  // namespace dalle2
