// SPDX-License-Identifier: MIT
// Runs kernels written in CUDA C++ on the processor: one block after the other, each thread of a block on a stack of its own. Threads
// change at __syncthreads(), and the next one begins when one ends, so that a missing barrier shows as a wrong result in one of two orders.
#pragma once

#include <c10/util/Half.h>
#include <ucontext.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

namespace dalle2::test::emulator {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
inline Index threadIdx, blockIdx, blockDim, gridDim;

/// The threads of a block.
class Block {
 public:
  /// @param backwards the last thread goes first
  Block(unsigned threads, bool backwards, const std::function<void()>& kernel)
      : kernel_(kernel), backwards_(backwards), threads_(threads) {
    current_block() = this;
    for (unsigned i = 0; i < threads; ++i) {
      Thread& thread = threads_[i];
      thread.stack.resize(kStack);
      getcontext(&thread.context);
      thread.context.uc_stack.ss_sp = thread.stack.data();
      thread.context.uc_stack.ss_size = kStack;
      thread.context.uc_link = &scheduler_;
      makecontext(&thread.context, &Block::enter, 0);
    }
    while (run_to_barrier()) {
    }
  }

  static void wait() {
    Block& block = *current_block();
    swapcontext(&block.threads_[threadIdx.x].context, &block.scheduler_);
  }

 private:
  struct Thread {
    ucontext_t context{};
    std::vector<char> stack;
    bool has_ended = false;
  };
  static constexpr size_t kStack = 64 * 1024;

  static Block*& current_block() {
    static Block* block = nullptr;
    return block;
  }
  static void enter() {
    Block& block = *current_block();
    block.kernel_();
    block.threads_[threadIdx.x].has_ended = true;
  }

  /// @return whether threads wait at a barrier: then all do, as CUDA demands
  bool run_to_barrier() {
    unsigned ended = 0;
    const auto count = static_cast<unsigned>(threads_.size());
    for (unsigned i = 0; i < count; ++i) {
      threadIdx = {backwards_ ? count - 1 - i : i, 0, 0};
      Thread& thread = threads_[threadIdx.x];
      swapcontext(&scheduler_, &thread.context);
      if (thread.has_ended) ++ended;
    }
    if (ended > 0 && ended < count) throw std::logic_error("not all threads reached a barrier");
    return ended == 0;
  }

  const std::function<void()>& kernel_;
  bool backwards_;
  std::vector<Thread> threads_;
  ucontext_t scheduler_{};
};

inline void run_grid(std::array<int64_t, 2> grid,
                     int64_t threads,
                     const std::function<void()>& kernel) {
  gridDim = {static_cast<unsigned>(grid[0]), static_cast<unsigned>(grid[1]), 1};
  blockDim = {static_cast<unsigned>(threads), 1, 1};
  for (unsigned y = 0; y < gridDim.y; ++y) {
    for (unsigned x = 0; x < gridDim.x; ++x) {
      blockIdx = {x, y, 0};
      Block(blockDim.x, (x + y) % 2 == 1, kernel);
    }
  }
}

// What CUDA C++ has of its own.
inline void __syncthreads() {
  Block::wait();
}
inline float __uint_as_float(unsigned bits) {
  return std::bit_cast<float>(bits);
}
inline unsigned __float_as_uint(float value) {
  return std::bit_cast<unsigned>(value);
}
inline float float_of_half(unsigned short bits) {
  return static_cast<float>(c10::Half(bits, c10::Half::from_bits()));
}
inline unsigned short half_of_float(float value) {
  return c10::Half(value).x;
}

/// A kernel by its arguments' addresses, as a driver is given them, and by what makes addresses of the processor of those of the device.
using Translate = std::function<void*(void*)>;
using Kernel = std::function<void(void* const* arguments, const Translate& translate)>;

template <class Parameter>
Parameter argument(void* from, const Translate& translate) {
  const Parameter value = *static_cast<Parameter*>(from);
  if constexpr (std::is_pointer_v<Parameter>) {
    return static_cast<Parameter>(translate(const_cast<void*>(static_cast<const void*>(value))));
  } else {
    return value;
  }
}

template <class... Parameters, size_t... I>
Kernel kernel_of(void (*function)(Parameters...), std::index_sequence<I...> /*numbers*/) {
  return [function](void* const* arguments, const Translate& translate) {
    function(argument<Parameters>(arguments[I], translate)...);
  };
}
template <class... Parameters>
Kernel kernel_of(void (*function)(Parameters...)) {
  return kernel_of(function, std::index_sequence_for<Parameters...>());
}

}  // namespace dalle2::test::emulator
