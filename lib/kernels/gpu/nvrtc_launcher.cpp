// SPDX-License-Identifier: MIT
#include "kernels/gpu/nvrtc_launcher.h"

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "base/error.h"
#include "base/log.h"

namespace dalle2 {
namespace {

template <class Function>
Function* function_in(void* library, const char* name) {
  auto* const found = reinterpret_cast<Function*>(dlsym(library, name));
  if (found == nullptr) throw ResourceError("{} is absent: {}", name, dlerror());
  return found;
}

/// The few functions of the driver that are needed (CUDA Driver API).
class Driver {
 public:
  explicit Driver(void* library)
      : get_context_(function_in<int(void**)>(library, "cuCtxGetCurrent")),
        set_context_(function_in<int(void*)>(library, "cuCtxSetCurrent")),
        retain_context_(function_in<int(void**, int)>(library, "cuDevicePrimaryCtxRetain")),
        get_device_(function_in<int(int*)>(library, "cuCtxGetDevice")),
        attribute_(function_in<int(int*, int, int)>(library, "cuDeviceGetAttribute")),
        load_(function_in<int(void**, const void*)>(library, "cuModuleLoadData")),
        get_function_(function_in<int(void**, void*, const char*)>(library, "cuModuleGetFunction")),
        launch_(function_in<Launch>(library, "cuLaunchKernel")),
        error_(function_in<int(int, const char**)>(library, "cuGetErrorString")) {}

  /// A thread that has only chosen its device may have no context yet: it gets the one that CUDA's runtime uses.
  void enter(int device) const {
    void* context = nullptr;
    check(get_context_(&context), "the current context");
    if (context != nullptr) return;
    check(retain_context_(&context, device), "the device's context");
    check(set_context_(context), "the device's context");
  }
  /// Of the current device: 90 is 9.0.
  int capability() const {
    constexpr int kMajor = 75, kMinor = 76;
    int device = 0, major = 0, minor = 0;
    check(get_device_(&device), "the current device");
    check(attribute_(&major, kMajor, device), "the compute capability");
    check(attribute_(&minor, kMinor, device), "the compute capability");
    return 10 * major + minor;
  }
  void* load(const std::string& code) const {
    void* module = nullptr;
    check(load_(&module, code.data()), "a program of kernels");
    return module;
  }
  void* function(void* module, const std::string& name) const {
    void* found = nullptr;
    check(get_function_(&found, module, name.c_str()), name);
    return found;
  }
  void launch(void* function, const KernelCall& call, void* stream) const {
    const auto number = [](int64_t value) { return static_cast<unsigned>(value); };
    check(launch_(function,
                  number(call.grid[0]),
                  number(call.grid[1]),
                  1,
                  number(call.threads),
                  1,
                  1,
                  /*shared memory=*/0,
                  stream,
                  const_cast<void**>(call.arguments.data()),
                  /*extra=*/nullptr),
          call.kernel);
  }

 private:
  using Launch = int(void*,
                     unsigned,
                     unsigned,
                     unsigned,
                     unsigned,
                     unsigned,
                     unsigned,
                     unsigned,
                     void*,
                     void**,
                     void**);

  void check(int code, const std::string& what) const {
    if (code == 0) return;
    const char* text = nullptr;
    error_(code, &text);
    throw ResourceError("{}: the GPU driver reports: {}", what, text == nullptr ? "?" : text);
  }

  int (*get_context_)(void**);
  int (*set_context_)(void*);
  int (*retain_context_)(void**, int);
  int (*get_device_)(int*);
  int (*attribute_)(int*, int, int);
  int (*load_)(void**, const void*);
  int (*get_function_)(void**, void*, const char*);
  Launch* launch_;
  int (*error_)(int, const char**);
};

void* open(const std::string& library) {
  void* const found = dlopen(library.c_str(), RTLD_LAZY);
  if (found == nullptr) throw ResourceError("{}", dlerror());
  return found;
}

class NvrtcLauncher final : public KernelLauncher {
 public:
  /// libcaffe2_nvrtc links NVRTC, so dlsym() finds NVRTC's functions through it.
  NvrtcLauncher()
      : driver_(open("libcuda.so.1")), nvrtc_(open(folder_of_libtorch() / "libcaffe2_nvrtc.so")) {}

  void launch(const KernelCall& call, const at::Device& device) override {
    const c10::DeviceGuard on_device(device);
    driver_.enter(device.index());
    const c10::impl::VirtualGuardImpl streams(device.type());
    void* const stream = streams.getStreamNativeHandle(streams.getStream(device));
    driver_.launch(function_of(call, device), call, stream);
  }

 private:
  using ProgramKey = std::tuple<std::string, at::ScalarType, at::ScalarType, c10::DeviceIndex>;

  void* function_of(const KernelCall& call, const at::Device& device) {
    const std::lock_guard lock(mutex_);
    const ProgramKey key{
        call.program.name, call.program.element, call.program.result, device.index()};
    void*& function = functions_[{key, call.kernel}];
    if (function != nullptr) return function;
    void*& module = modules_[key];
    if (module == nullptr)
      module = driver_.load(nvrtc_.compile(call.program, driver_.capability()));
    function = driver_.function(module, call.kernel);
    return function;
  }

  Driver driver_;
  Nvrtc nvrtc_;
  std::mutex mutex_;
  std::map<ProgramKey, void*> modules_;
  std::map<std::pair<ProgramKey, std::string>, void*> functions_;
};

const char* name_of_element(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "Float32";
    case at::kBFloat16:
      return "BFloat16";
    case at::kHalf:
      return "Float16";
    default:
      D2_CHECK(false, "no kernels of {}", c10::toString(type));
      return "";
  }
}

}  // namespace

std::filesystem::path folder_of_libtorch() {
  Dl_info info{};
  // Any function that libtorch_cpu.so defines.
  if (dladdr(reinterpret_cast<const void*>(&at::globalContext), &info) == 0) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

Nvrtc::Nvrtc(void* library) : library_(library) {
  find("nvrtcCreateProgram", create_);
  find("nvrtcCompileProgram", compile_);
  find("nvrtcDestroyProgram", destroy_);
  find("nvrtcGetProgramLogSize", log_size_);
  find("nvrtcGetProgramLog", log_);
  find("nvrtcGetCUBINSize", code_size_);
  find("nvrtcGetCUBIN", code_);
  find("nvrtcGetPTXSize", text_size_);
  find("nvrtcGetPTX", text_);
  find("nvrtcGetNumSupportedArchs", count_capabilities_);
  find("nvrtcGetSupportedArchs", capabilities_);
  find("nvrtcGetErrorString", error_);
}

template <class Function>
void Nvrtc::find(const char* name, Function*& function) const {
  function = function_in<Function>(library_, name);
}

void Nvrtc::check(int code, const char* what) const {
  if (code != 0) throw ResourceError("{}: NVRTC says: {}", what, error_(code));
}

std::vector<int> Nvrtc::capabilities() const {
  int count = 0;
  check(count_capabilities_(&count), "the compute capabilities");
  std::vector<int> found(static_cast<size_t>(count));
  check(capabilities_(found.data()), "the compute capabilities");
  std::sort(found.begin(), found.end());
  return found;
}

std::string Nvrtc::compile(const KernelProgram& program, int capability) const {
  const std::vector<int> known = capabilities();
  const auto above = std::upper_bound(known.begin(), known.end(), capability);
  if (above == known.begin()) {
    throw ResourceError("a GPU of compute capability {}.{} is too old for this NVRTC",
                        capability / 10,
                        capability % 10);
  }
  const int nearest = *(above - 1);
  const bool is_known = nearest == capability;
  const std::string target =
      fmt::format("--gpu-architecture={}_{}", is_known ? "sm" : "compute", nearest);
  const std::string element = fmt::format("-DELEMENT={}", name_of_element(program.element));
  const std::string result = fmt::format("-DRESULT={}", name_of_element(program.result));
  const std::vector<const char*> options = {target.c_str(),
                                            element.c_str(),
                                            result.c_str(),
                                            "-DKERNEL=extern \"C\" __global__ void",
                                            "--std=c++17"};
  const std::string source = kernel_source(program.name);
  Program compiled = nullptr;
  check(create_(&compiled, source.c_str(), program.name, 0, nullptr, nullptr), program.name);
  const std::unique_ptr<Program, int (*)(Program*)> owner(&compiled, destroy_);
  const auto take = [&](int (*size_of)(Program, size_t*), int (*copy)(Program, char*)) {
    size_t size = 0;
    check(size_of(compiled, &size), program.name);
    std::string text(size, '\0');
    check(copy(compiled, text.data()), program.name);
    return text;
  };
  if (compile_(compiled, static_cast<int>(options.size()), options.data()) != 0) {
    throw ResourceError(
        "{}: NVRTC reports compilation errors:\n{}", program.name, take(log_size_, log_));
  }
  return is_known ? take(code_size_, code_) : take(text_size_, text_);
}

KernelLauncher* nvrtc_launcher() {
  static const std::unique_ptr<KernelLauncher> launcher = []() -> std::unique_ptr<KernelLauncher> {
    try {
      return std::make_unique<NvrtcLauncher>();
    } catch (const ResourceError& error) {
      log_warning(
          "train",
          "kernels of this program cannot be compiled for the GPU: {}\n  Steps take LibTorch's "
          "operations instead, which take longer.",
          error.what());
      return nullptr;
    }
  }();
  return launcher.get();
}

}  // namespace dalle2
