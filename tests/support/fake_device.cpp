// SPDX-License-Identifier: MIT
#include "support/fake_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <utility>

#include "kernels/cpu_algorithms.h"
#include "model/random.h"
#include "support/fake_device_parts.h"

namespace dalle2::test {
namespace {

/// Its convolutions are ATen's on the CPU, in the plain order: the CPU's own are to have the same bits.
const PlainAlgorithms plain_algorithms;

// ---- Random numbers

/// Those of the CPU, for the same seed.
class DeviceGenerator : public c10::GeneratorImpl {
 public:
  explicit DeviceGenerator(at::Generator host)
      : GeneratorImpl(fake_device(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host_(std::move(host)) {}

  void set_current_seed(uint64_t seed) override {
    host_ = cpu_generator(seed);
    draws_ = 0;
  }
  void set_offset(uint64_t /*offset*/) override { TORCH_CHECK(false, "not of this device"); }
  uint64_t get_offset() const override { return draws_; }
  uint64_t current_seed() const override { return host_.current_seed(); }
  uint64_t seed() override { return host_.seed(); }
  void set_state(const c10::TensorImpl& /*state*/) override {
    TORCH_CHECK(false, "not of this device");
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host_.get_state().getIntrusivePtr();
  }

  at::Generator& draw() {
    ++draws_;
    return host_;
  }

 private:
  DeviceGenerator* clone_impl() const override { return new DeviceGenerator(host_.clone()); }

  at::Generator host_;
  uint64_t draws_ = 0;
};

// ---- Streams and events

struct DeviceEvent {
  StreamClock clock;
  std::chrono::steady_clock::time_point time;
  bool has_time;
};

DeviceEvent& event_of(void* event) {
  return *static_cast<DeviceEvent*>(event);
}

thread_local bool has_chosen = false;

struct DeviceGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return at::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device /*device*/) const override { return fake_device(); }
  c10::Device getDevice() const override { return fake_device(); }
  void setDevice(c10::Device /*device*/) const override { has_chosen = true; }
  void uncheckedSetDevice(c10::Device /*device*/) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device /*device*/) const override { return current_stream(); }
  c10::Stream getDefaultStream(c10::Device /*device*/) const override {
    return c10::Stream(c10::Stream::DEFAULT, fake_device());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device /*device*/, bool /*high*/) const override {
    return new_stream();
  }
  c10::Stream getNewStream(c10::Device /*device*/, int /*priority*/) const override {
    return new_stream();
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream earlier = current_stream();
    set_current_stream(stream);
    return earlier;
  }
  bool queryStream(const c10::Stream& /*stream*/) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    wait_on_host(clock_of(stream), "a stream");
  }
  void synchronizeDevice(const c10::DeviceIndex /*index*/) const override { wait_for_all(); }

  void record(void** event,
              const c10::Stream& stream,
              const c10::DeviceIndex /*index*/,
              const c10::EventFlag flag) const override {
    if (flag == c10::EventFlag::BACKEND_DEFAULT)
      refuse_while_recording("an event with a time stamp");
    if (*event == nullptr) *event = new DeviceEvent;
    event_of(*event) = {clock_of(stream),
                        std::chrono::steady_clock::now(),
                        flag == c10::EventFlag::BACKEND_DEFAULT};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) wait_in_stream(stream, event_of(event).clock);
  }
  bool queryEvent(void* /*event*/) const override {
    refuse_while_recording("a look at an event");
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) wait_on_host(event_of(event).clock, "an event");
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*index*/) const noexcept override {
    delete static_cast<DeviceEvent*>(event);
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex /*index*/) const override {
    TORCH_CHECK(event_of(begin).has_time && event_of(end).has_time,
                "these events were made without time stamps");
    const auto between = event_of(end).time - event_of(begin).time;
    return std::chrono::duration<double, std::milli>(between).count();
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    record_memory(memory.get(), stream);
  }
};

// ---- What LibTorch asks for

struct DeviceHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex /*index*/) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex /*index*/) const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex /*index*/) const override {}
  const at::Generator& getDefaultGenerator(c10::DeviceIndex /*index*/) const override {
    static const auto* const generator =
        new at::Generator(at::make_generator<DeviceGenerator>(cpu_generator(0)));
    return *generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex /*index*/) const override {
    return at::make_generator<DeviceGenerator>(cpu_generator(0));
  }
  at::Device getDeviceFromPtr(void* /*address*/) const override { return fake_device(); }
  bool isPinnedPtr(const void* address) const override { return is_pinned_address(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
};

// Before main(), for autograd starts a thread for each device that it finds at its first use.
const bool is_registered = [] {
  c10::register_privateuse1_backend("fake_gpu");
  at::RegisterPrivateUse1HooksInterface(new DeviceHooks);
  c10::SetAllocator(at::kPrivateUse1, device_allocator());
  pinned_allocator();
  const c10::impl::DeviceGuardImplRegistrar guard(at::kPrivateUse1, new DeviceGuard);
  return true;
}();

}  // namespace

c10::Device fake_device() {
  return {at::kPrivateUse1, 0};
}

bool thread_has_chosen_device() {
  return has_chosen;
}

at::Generator host_generator_in(const at::Generator& generator) {
  refuse_while_recording("random numbers");
  return static_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl())->draw();
}

}  // namespace dalle2::test
