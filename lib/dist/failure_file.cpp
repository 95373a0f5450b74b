// SPDX-License-Identifier: MIT
#include "dist/failure_file.h"

#include <chrono>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>

namespace dalle2 {

void write_failure_file(const World& world, const std::string& message) noexcept {
  if (world.error_file.empty()) return;
  try {
    const auto now = std::chrono::duration_cast<std::chrono::seconds>(
        std::chrono::system_clock::now().time_since_epoch());
    // What torchrun shows of it is the callstack, which stands for Python's traceback there.
    const nlohmann::json json = {
        {"message",
         {{"message", message},
          {"extraInfo", {{"py_callstack", message}, {"timestamp", std::to_string(now.count())}}}}}};
    std::ofstream(world.error_file)
        << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  } catch (const std::exception&) {  // the message is on stderr too
  }
}

}  // namespace dalle2
