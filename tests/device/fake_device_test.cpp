// SPDX-License-Identifier: MIT
#include "support/fake_device.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>
#include <catch2/catch.hpp>

#include "data/pictures/preprocess.h"
#include "model/random.h"
#include "optim/precision.h"
#include "run/device/device.h"

namespace dalle2::test {
namespace {

at::Tensor drawn(at::IntArrayRef sizes, const char* purpose = "values") {
  return at::randn(sizes, make_generator({1, purpose}, at::kCPU));
}

at::Tensor on_device(const at::Tensor& tensor) {
  return tensor.to(fake_device());
}

TEST_CASE("the fake device takes numbers of the CPU, but no other tensors of it") {
  const at::Tensor x = on_device(drawn({3}));
  CHECK(at::equal((x * at::scalar_tensor(2.0)).cpu(), x.cpu() * 2));
  CHECK_THROWS_WITH(x + drawn({3}),
                    Catch::Matchers::Contains("expected all tensors on one device, got [3] on the "
                                              "CPU"));
  CHECK_THROWS(at::scalar_tensor(1.0).add_(x[0]));
  CHECK_THROWS_WITH(at::empty({3}, at::device(fake_device()))
                        .normal_(0, 1, at::make_generator<at::CPUGeneratorImpl>(1)),
                    Catch::Matchers::Contains("the generator is of the CPU"));
}

TEST_CASE("the fake device counts operations, reads and copies") {
  const at::Tensor x = on_device(drawn({4}));
  const auto of_operations = counts_of([&] { x.view({2, 2}).t().mul(2).add_(1); });
  CHECK(of_operations.operations == 2);
  CHECK(of_operations.stalls() == 0);
  const auto of_reads = counts_of([&] {
    x.sum().item<float>();
    x.gt(0).nonzero();
    x.index({x.gt(0)});
    x.index({x.gt(0).to(at::kLong)});
  });
  INFO(of_reads.text());
  CHECK(of_reads.host_reads == 3);
  const at::Tensor pinned = drawn({4}).pin_memory();
  CHECK(pinned.is_pinned());
  CHECK_FALSE(drawn({4}).is_pinned());
  const auto of_copies = counts_of([&] {
    pinned.to(fake_device(), /*non_blocking=*/true);
    pinned.to(fake_device());
    drawn({4}).to(fake_device(), /*non_blocking=*/true);
    x.cpu();
  });
  INFO(of_copies.text());
  CHECK(of_copies.uploads == 3);
  CHECK(of_copies.waiting_uploads == 2);
  CHECK(of_copies.downloads == 1);
  CHECK(of_copies.waiting_downloads == 1);
}

TEST_CASE("what is copied from the fake device without waiting arrives when the host waits") {
  const at::Tensor x = on_device(at::ones({3}));
  const at::Tensor there = at::zeros({3}, at::device(at::kCPU).pinned_memory(true));
  const auto counts = counts_of([&] {
    there.copy_(x, /*non_blocking=*/true);
    x.add_(1);  // comes later
    CHECK(there.isnan().all().item<bool>());
    c10::Event event(at::kPrivateUse1);
    event.record(c10::impl::VirtualGuardImpl(at::kPrivateUse1).getStream(fake_device()));
    event.synchronize();
  });
  CHECK(at::equal(there, at::ones({3})));
  CHECK(counts.stalls() == 0);
  CHECK(counts.host_waits == 1);
}

TEST_CASE("streams of the fake device wait for each other by events alone") {
  const c10::impl::VirtualGuardImpl device(at::kPrivateUse1);
  const c10::Stream other = device.getStreamFromGlobalPool(fake_device());
  const c10::Stream own = device.getStream(fake_device());
  const at::Tensor pinned = drawn({3}).pin_memory();
  at::Tensor x;
  const auto copied = [&] {
    const c10::StreamGuard on_other(other);
    x = pinned.to(fake_device(), /*non_blocking=*/true);
  };
  copied();
  CHECK_THROWS_WITH(x + 1, Catch::Matchers::Contains("no event comes between them"));
  c10::Event event(at::kPrivateUse1);
  event.record(other);
  event.block(own);
  CHECK(at::equal((x + 1).cpu(), pinned + 1));
  CHECK(counts_of([&] { x.reset(); }).unsafe_frees == 1);  // `other` may use it again
  copied();
  event.record(other);
  event.block(own);
  x.add(1);
  x.record_stream(own);
  CHECK(counts_of([&] { x.reset(); }).unsafe_frees == 0);
}

TEST_CASE("batches go to the fake device in the background") {
  at::Tensor pageable = drawn({2, 3}), pinned = drawn({4}).pin_memory();
  const at::Tensor expected = pageable, expected_pinned = pinned;
  const auto counts = counts_of([&] {
    copy_to_device(fake_device(), {&pageable, &pinned});
    pageable.add(1);
    pinned.add(1);
  });
  INFO(counts.text());
  CHECK(counts.uploads == 2);
  CHECK(counts.stalls() + counts.host_waits == 0);
  CHECK(at::equal(pageable.cpu(), expected));
  CHECK(at::equal(pinned.cpu(), expected_pinned));
  CHECK(counts_of([&] { pageable.reset(), pinned.reset(); }).unsafe_frees == 0);
}

TEST_CASE("bytes become floats on the device, with the bits of the CPU's division") {
  at::Tensor bytes = at::arange(256, at::kByte).reshape({2, 128}).pin_memory();
  const at::Tensor expected = bytes.to(at::kFloat) / at::full({2, 128}, 255.0F);
  const auto counts = counts_of([&] { copy_to_device(fake_device(), {&bytes}); });
  INFO(counts.text());
  CHECK(counts.by_name.at("upload, [2, 128]Byte") == 1);
  CHECK(counts.stalls() == 0);
  CHECK(at::equal(bytes.cpu(), expected));
  CHECK(at::equal(floats_from_bytes(at::arange(256, at::kByte)).reshape({2, 128}), expected));
}

TEST_CASE("what the host draws for a device follows from all 64 bits of the device's seed") {
  const auto drawn_for = [](uint64_t seed) {
    at::Generator generator = make_generator({1, "values"}, fake_device());
    generator.set_current_seed(seed);
    return at::rand({8}, host_generator(generator));
  };
  CHECK(at::equal(drawn_for(5), drawn_for(5)));
  CHECK_FALSE(at::equal(drawn_for(5), drawn_for(5 + (uint64_t{1} << 32))));
}

TEST_CASE("autocast on the fake device chooses as on a GPU") {
  const at::Tensor x = on_device(drawn({2, 4})), w = on_device(drawn({4, 4}));
  const Autocast autocast(at::kPrivateUse1, MixedPrecision::bf16);
  CHECK(at::linear(x, w).scalar_type() == at::kBFloat16);
  CHECK(at::layer_norm(at::linear(x, w), {4}).scalar_type() == at::kFloat);
  CHECK(at::linear(x, w).softmax(-1).scalar_type() == at::kFloat);
  CHECK(at::addcmul(at::linear(x, w), x, x).scalar_type() == at::kFloat);
}

}  // namespace
}  // namespace dalle2::test
