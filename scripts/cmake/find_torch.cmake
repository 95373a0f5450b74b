# SPDX-License-Identifier: MIT
# LibTorch from the folder TORCH_DIR (the `torch` folder of the wheel, or an unpacked LibTorch) as the
# target dalle2_torch. Without TORCH_DIR, from where find_package(Torch) would find it: Torch_DIR, CMAKE_PREFIX_PATH, the
# system's folders. The CMake files of LibTorch are not read, for those of the wheel demand a CUDA toolkit of the same version
# even for CPU programs; the libraries are named here: they need no more than the headers and -l.
set(TORCH_DIR "$ENV{TORCH_DIR}" CACHE PATH "Folder of LibTorch: holds include/ and lib/")
if(NOT TORCH_DIR)
  find_path(torch_config TorchConfig.cmake HINTS ${Torch_DIR} $ENV{Torch_DIR} ${CMAKE_PREFIX_PATH} ENV CMAKE_PREFIX_PATH
    ${CMAKE_SYSTEM_PREFIX_PATH} PATH_SUFFIXES share/cmake/Torch NO_CACHE)
  if(torch_config)
    cmake_path(SET torch_folder NORMALIZE ${torch_config}/../../..)
    string(REGEX REPLACE "/$" "" torch_folder ${torch_folder})
    set_property(CACHE TORCH_DIR PROPERTY VALUE ${torch_folder})
    message(STATUS "LibTorch: ${TORCH_DIR}")
  endif()
endif()
if(NOT EXISTS "${TORCH_DIR}/include/torch/csrc/api/include/torch/torch.h")
  message(FATAL_ERROR "TORCH_DIR is '${TORCH_DIR}', which holds no LibTorch.\n"
    "Run ./scripts/setup.sh, which installs it and writes the folder to build/torch_dir, or pass "
    "-DTORCH_DIR=<the torch folder of a wheel, or an unpacked LibTorch>.")
endif()
set(torch_version_header ${TORCH_DIR}/include/torch/headeronly/version.h)
if(NOT EXISTS ${torch_version_header})  # before 2.9
  set(torch_version_header ${TORCH_DIR}/include/torch/csrc/api/include/torch/version.h)
endif()
dalle2_header_version(LibTorch ${torch_version_header} "define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]" 2.11)

add_library(dalle2_torch INTERFACE)
target_include_directories(dalle2_torch SYSTEM INTERFACE
  ${TORCH_DIR}/include ${TORCH_DIR}/include/torch/csrc/api/include)
target_compile_definitions(dalle2_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
# LibTorch brings the headers of a newer fmt than Debian's library: what sees torch uses them alone. Their other half, which
# LibTorch's libraries do not export, is compiled once here: header only, each file that formats would hold a copy.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/torch_fmt.cpp CONTENT [[
#include <fmt/format-inl.h>
FMT_BEGIN_NAMESPACE
template FMT_API auto detail::dragonbox::to_decimal(float x) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto detail::dragonbox::to_decimal(double x) noexcept -> dragonbox::decimal_fp<double>;
template FMT_API auto detail::thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto detail::decimal_point_impl(locale_ref) -> char;
#if FMT_USE_LOCALE
template FMT_API auto locale_ref::get<std::locale>() const -> std::locale;
#endif
FMT_END_NAMESPACE
]] @ONLY)
add_library(dalle2_torch_fmt STATIC ${CMAKE_BINARY_DIR}/torch_fmt.cpp)
target_include_directories(dalle2_torch_fmt SYSTEM PRIVATE ${TORCH_DIR}/include)
set(torch_libraries dalle2_torch_fmt ${TORCH_DIR}/lib/libtorch_cpu.so ${TORCH_DIR}/lib/libc10.so)
if(DALLE2_CUDA)
  foreach(library torch_cuda c10_cuda)
    if(NOT EXISTS ${TORCH_DIR}/lib/lib${library}.so)
      message(FATAL_ERROR "DALLE2_CUDA is on, but ${TORCH_DIR}/lib/lib${library}.so is absent: "
        "this is a LibTorch without CUDA. Run ./scripts/setup.sh --cuda, or configure with -DDALLE2_CUDA=OFF.")
    endif()
  endforeach()
  # The program loads them itself where there is a GPU; only the module for NCCL names their symbols.
  add_library(dalle2_torch_cuda INTERFACE)
  target_link_libraries(dalle2_torch_cuda INTERFACE ${TORCH_DIR}/lib/libtorch_cuda.so ${TORCH_DIR}/lib/libc10_cuda.so)
endif()
# Without OpenMP, at::parallel_for of our own loops would use one thread. The library has to be LibTorch's own copy, so that
# both share one pool of threads.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(dalle2_torch INTERFACE -fopenmp)
  file(GLOB torch_openmp ${TORCH_DIR}/lib/libgomp*.so*)
  if(torch_openmp)
    list(GET torch_openmp 0 torch_openmp)
    list(APPEND torch_libraries ${torch_openmp})
  else()
    list(APPEND torch_libraries gomp)
  endif()
endif()
# libtorch_cpu of the CUDA wheel finds libcudart and libcupti through its own RPATH at run time.
target_link_options(dalle2_torch INTERFACE -Wl,--allow-shlib-undefined)
target_link_libraries(dalle2_torch INTERFACE ${torch_libraries} pthread)
list(APPEND CMAKE_BUILD_RPATH ${TORCH_DIR}/lib)
