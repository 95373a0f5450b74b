# SPDX-License-Identifier: MIT
# dalle2_library(NAME [TORCH] [SMALL] SOURCES ... [USES layer...] [LINKS target...]): one layer. SMALL, for a layer that no
# step of training waits for and that sees no tensors: compiled for size, which takes two thirds of the time and half the room.
# dalle2_test(NAME [TORCH] LABELS ... SOURCES ... [USES layer...] [LINKS target...]): its tests, one binary.
# dalle2_reference_test(NAME TIMEOUT seconds LABELS ... COMMAND program.py arguments... [ENVIRONMENT A=b...]): a test that needs the
# reference's Python. Without DALLE2_REFERENCE_PYTHON in ctest's environment it is listed as skipped.
# dalle2_header_version(PACKAGE FILE PATTERN OLDEST): stops if the version that the header FILE states is older. PATTERN
# matches the lines with its numbers, of which the first three count.

# What every target of ours is compiled with; warnings become errors in the developers' presets
# (CMAKE_COMPILE_WARNING_AS_ERROR), not here.
add_library(dalle2_options INTERFACE)
target_compile_options(dalle2_options INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-unknown-pragmas)
# g++ 12 sees overlaps and overruns inside std::string and std::vector that are none (GCC bugs 105651,
# 105329). Clang does not know these names.
set(of_gcc "$<CXX_COMPILER_ID:GNU>")
target_compile_options(dalle2_options INTERFACE
  "$<${of_gcc}:-Wno-restrict;-Wno-array-bounds;-Wno-stringop-overflow>")
target_include_directories(dalle2_options INTERFACE ${CMAKE_SOURCE_DIR}/lib)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # A precompiled header needs these two to be cached at all.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} ${CCACHE_PROGRAM})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  add_compile_options("$<${of_gcc}:-fpch-preprocess>")
endif()

# One precompiled header for all that sees tensors: 35 s once instead of 15 s in each file.
function(dalle2_precompiled_torch)
  if(TARGET dalle2_torch_pch)
    return()
  endif()
  file(WRITE ${CMAKE_BINARY_DIR}/torch_pch.cpp "// Carries the shared precompiled header.\n")
  add_library(dalle2_torch_pch OBJECT ${CMAKE_BINARY_DIR}/torch_pch.cpp)
  target_link_libraries(dalle2_torch_pch PRIVATE dalle2_options dalle2_torch base)
  target_precompile_headers(dalle2_torch_pch PRIVATE <torch/torch.h> <fmt/format.h>)
endfunction()

function(dalle2_setup target)
  cmake_parse_arguments(ARG "TORCH;SMALL" "" "USES;LINKS" ${ARGN})
  target_link_libraries(${target} PUBLIC ${ARG_USES} ${ARG_LINKS} PRIVATE dalle2_options)
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR}/lib)
  if(ARG_SMALL)
    target_compile_options(${target} PRIVATE "$<$<CONFIG:Release>:-Os>")
  endif()
  if(DALLE2_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
  if(ARG_TORCH)
    dalle2_precompiled_torch()
    target_link_libraries(${target} PUBLIC dalle2_torch)
    # Programs too are compiled with -fPIC (not -fPIE), else g++ refuses the precompiled header.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
    target_precompile_headers(${target} REUSE_FROM dalle2_torch_pch)
  endif()
endfunction()

function(dalle2_library name)
  cmake_parse_arguments(ARG "TORCH;SMALL" "" "SOURCES;USES;LINKS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  set(kind)
  if(ARG_TORCH)
    list(APPEND kind TORCH)
  endif()
  if(ARG_SMALL)
    list(APPEND kind SMALL)
  endif()
  dalle2_setup(${name} ${kind} USES ${ARG_USES} LINKS ${ARG_LINKS})
endfunction()

# dalle2_cuda_module(NAME SOURCE): a shared object of one file that uses LibTorch's CUDA half, loaded by base/this_process.h.
function(dalle2_cuda_module name source)
  add_library(${name} MODULE ${source})
  target_link_libraries(${name} PRIVATE dalle2_options dalle2_torch dalle2_torch_cuda)
  # A wheel names its libraries as they name themselves.
  target_link_options(${name} PRIVATE -Wl,-soname,lib${name}.so)
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
endfunction()

# What the sources of tests see besides the layers.
function(dalle2_test_sources target)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  if(Catch2_VERSION VERSION_GREATER_EQUAL 3)
    target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/tests/support/catch3)
  endif()
  target_compile_definitions(${target} PRIVATE DALLE2_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                                               DALLE2_BINARY_DIR="${CMAKE_BINARY_DIR}")
endfunction()

function(dalle2_test name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;USES;LINKS;LABELS" ${ARGN})
  add_executable(test_${name} ${ARG_SOURCES})
  set(torch)
  if(ARG_TORCH)
    set(torch TORCH)
  endif()
  dalle2_setup(test_${name} ${torch} USES ${ARG_USES} LINKS ${ARG_LINKS} Catch2::Catch2WithMain)
  dalle2_test_sources(test_${name})
  add_test(NAME ${name} COMMAND test_${name})
  # Tests run side by side: threads that wait for each other on a full machine cost more than they bring.
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 600
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} ENVIRONMENT "OMP_NUM_THREADS=1")
endfunction()

function(dalle2_reference_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "LABELS;COMMAND;ENVIRONMENT" ${ARGN})
  add_test(NAME ${name} COMMAND ${CMAKE_SOURCE_DIR}/tests/support/with_reference.sh ${ARG_COMMAND})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS};reference" TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} ENVIRONMENT "OMP_NUM_THREADS=1;${ARG_ENVIRONMENT}")
endfunction()

function(dalle2_header_version package file pattern oldest)
  file(STRINGS ${file} lines REGEX "${pattern}")
  string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
  list(SUBLIST numbers 0 3 numbers)
  list(JOIN numbers . version)
  if(version VERSION_LESS oldest)
    message(FATAL_ERROR "${package} ${version} (${file}) is too old: ${oldest} or newer is needed.")
  endif()
  message(STATUS "Found ${package} ${version}")
endfunction()
