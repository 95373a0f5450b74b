// SPDX-License-Identifier: MIT
#pragma once

#include <exception>

#include "base/error.h"
#include "base/stop_signal.h"
#include "dist/peer_error.h"

namespace dalle2 {

/// A fault that training has no part in: a lost network, a shard list that cannot be read. The state
/// is sound, so it is saved before the run ends with the fault.
struct OutsideFault {
  std::exception_ptr fault;  ///< an Error
};

/// What `part` returns. Of several ranks the fault of one has to reach the others as a StoppedError
/// at the same place. @throws OutsideFault instead of an Error; StoppedError and PeerError as they
/// are
template <class Part>
auto from_outside(Part&& part) -> decltype(part()) {
  try {
    return part();
  } catch (const StoppedError&) {
    throw;
  } catch (const PeerError&) {
    throw;
  } catch (const Error&) {
    throw OutsideFault{std::current_exception()};
  }
}

}  // namespace dalle2
