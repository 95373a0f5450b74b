// SPDX-License-Identifier: MIT
// In the place of the driver's libnvidia-ml.so.1: two GPUs, of which the second tells only its memory.
#include <cstring>

namespace {

constexpr int kDone = 0, kNotSupported = 3;
int first = 0, second = 0;

bool is_first(const void* device) {
  return device == &first;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return kDone;
}
int nvmlShutdown() {
  return kDone;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return kDone;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = index == 0 ? &first : &second;
  return kDone;
}
int nvmlDeviceGetName(void* device, char* name, unsigned length) {
  std::strncpy(name, is_first(device) ? "Double 1" : "Double 2", length);
  return kDone;
}
int nvmlDeviceGetUtilizationRates(void* device, unsigned* rates) {
  rates[0] = 70;
  rates[1] = 30;
  return is_first(device) ? kDone : kNotSupported;
}
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* memory) {
  memory[0] = 1000;
  memory[2] = is_first(device) ? 250 : 500;
  memory[1] = memory[0] - memory[2];
  return kDone;
}
int nvmlDeviceGetTemperature(void* device, int, unsigned* degrees) {
  *degrees = 55;
  return is_first(device) ? kDone : kNotSupported;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  *milliwatts = 150'000;
  return is_first(device) ? kDone : kNotSupported;
}
int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned* milliwatts) {
  *milliwatts = 600'000;
  return is_first(device) ? kDone : kNotSupported;
}
}
