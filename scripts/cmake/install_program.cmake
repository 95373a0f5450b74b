# SPDX-License-Identifier: MIT
# What `cmake --install` and CPack put where: the program, its manual page and completions, example configs
# (component `program`), and with DALLE2_BUNDLE the libraries it needs (component `libraries`; `libtorch` for LibTorch
# and NVIDIA's, which a Python wheel finds beside it), so that the folder runs wherever it is moved to.
set(libraries_folder ${CMAKE_INSTALL_LIBDIR}/dalle2-train)
file(RELATIVE_PATH libraries_from_program ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/dalle2-train)
if(DALLE2_BUNDLE)
  set_target_properties(dalle2-train PROPERTIES INSTALL_RPATH "$ORIGIN/${libraries_from_program}")
  # DT_RPATH, for the bundled libraries find each other by it; DT_RUNPATH is for the program's own needs alone.
  target_link_options(dalle2-train PRIVATE -Wl,--disable-new-dtags)
  # The C and C++ libraries and the GPU's driver are the system's. Of libgomp there may be two, the system's and
  # LibTorch's: the arithmetic needs the latter.
  set(of_system "^ld-linux" "^lib(c|m|dl|rt|util|pthread|resolv|gcc_s|stdc\\+\\+)\\.so" "^libgomp" "^libcuda\\.so" "^libnvidia-")
  file(REAL_PATH ${TORCH_DIR} torch_folder)
  cmake_path(GET torch_folder PARENT_PATH torch_neighbours)
  set(of_torch)
  foreach(folder ${TORCH_DIR} ${torch_folder} ${torch_neighbours}/nvidia)
    string(REGEX REPLACE "([.+])" "\\\\\\1" pattern ${folder})
    list(APPEND of_torch "^${pattern}/")
  endforeach()
  install(TARGETS dalle2-train RUNTIME_DEPENDENCY_SET needed RUNTIME COMPONENT program)
  if(DALLE2_NCCL)
    install(TARGETS dalle2_nccl dalle2_cuda_graph RUNTIME_DEPENDENCY_SET needed LIBRARY DESTINATION ${libraries_folder} COMPONENT libraries)
  endif()
  if(DALLE2_PARQUET)
    install(TARGETS dalle2_parquet RUNTIME_DEPENDENCY_SET needed LIBRARY DESTINATION ${libraries_folder} COMPONENT libraries)
  endif()
  if(DALLE2_CUDA)
    # LibTorch and cuDNN load these by name, when an operation first needs them.
    foreach(library torch_cuda torch_cuda_linalg caffe2_nvrtc)
      add_library(bundled_${library} SHARED IMPORTED)
      set_target_properties(bundled_${library} PROPERTIES IMPORTED_LOCATION ${TORCH_DIR}/lib/lib${library}.so)
      install(IMPORTED_RUNTIME_ARTIFACTS bundled_${library} RUNTIME_DEPENDENCY_SET needed
        LIBRARY DESTINATION ${libraries_folder} COMPONENT libtorch)
    endforeach()
    # cuDNN's parts, the compiler's built-in functions, direct reads from disks, ways of nvshmem. Of the compiler's two forms the
    # other one (.alt) is for those who ask for it.
    file(GLOB loaded_by_name ${torch_neighbours}/nvidia/cudnn*/lib/libcudnn_*.so.* ${torch_neighbours}/nvidia/*/lib/libnvrtc-builtins.so.*
      ${torch_neighbours}/nvidia/*/lib/libcufile_rdma.so.* ${torch_neighbours}/nvidia/nvshmem/lib/nvshmem_*.so.*)
    install(FILES ${loaded_by_name} DESTINATION ${libraries_folder} COMPONENT libtorch)
  endif()
  install(RUNTIME_DEPENDENCY_SET needed DESTINATION ${libraries_folder} COMPONENT libraries
    PRE_EXCLUDE_REGEXES ${of_system} POST_EXCLUDE_REGEXES ${of_torch} DIRECTORIES ${TORCH_DIR}/lib ${ARROW_DIR})
  install(RUNTIME_DEPENDENCY_SET needed DESTINATION ${libraries_folder} COMPONENT libtorch
    PRE_EXCLUDE_REGEXES ${of_system} POST_INCLUDE_REGEXES ${of_torch} POST_EXCLUDE_REGEXES "." DIRECTORIES ${TORCH_DIR}/lib)
  file(GLOB torch_openmp ${TORCH_DIR}/lib/libgomp*.so*)
  install(FILES ${torch_openmp} DESTINATION ${libraries_folder} COMPONENT libtorch OPTIONAL)
else()
  set_target_properties(dalle2-train PROPERTIES INSTALL_RPATH "${TORCH_DIR}/lib;$ORIGIN/${libraries_from_program}")
  install(TARGETS dalle2-train RUNTIME COMPONENT program)
  if(DALLE2_NCCL)
    install(TARGETS dalle2_nccl dalle2_cuda_graph LIBRARY DESTINATION ${libraries_folder} COMPONENT libraries)
  endif()
  if(DALLE2_PARQUET)
    set_target_properties(dalle2_parquet PROPERTIES INSTALL_RPATH ${ARROW_DIR})
    install(TARGETS dalle2_parquet LIBRARY DESTINATION ${libraries_folder} COMPONENT libraries)
  endif()
endif()

# The program knows its options best, so it writes these itself.
set(pages ${CMAKE_BINARY_DIR}/pages)
add_custom_command(OUTPUT ${pages}/dalle2-train.1
  COMMAND ${CMAKE_COMMAND} -E make_directory ${pages}
  COMMAND ${CMAKE_COMMAND} -E env COLUMNS=72 $<TARGET_FILE:dalle2-train> man-page > ${pages}/dalle2-train.1
  COMMAND dalle2-train completion bash > ${pages}/dalle2-train
  COMMAND dalle2-train completion zsh > ${pages}/_dalle2-train
  COMMAND dalle2-train completion fish > ${pages}/dalle2-train.fish
  DEPENDS dalle2-train VERBATIM)
add_custom_target(dalle2_pages ALL DEPENDS ${pages}/dalle2-train.1)
install(FILES ${pages}/dalle2-train.1 TYPE MAN COMPONENT program RENAME man1/dalle2-train.1)
install(FILES ${pages}/dalle2-train DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT program)
install(FILES ${pages}/_dalle2-train DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT program)
install(FILES ${pages}/dalle2-train.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT program)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/dalle2-train COMPONENT program)
install(FILES ${CMAKE_SOURCE_DIR}/README.md ${CMAKE_SOURCE_DIR}/LICENSE TYPE DOC COMPONENT program)

set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_NAME dalle2-train)
set(CPACK_PACKAGE_VENDOR "dalle2-train")
set(CPACK_PACKAGE_CONTACT "the authors of dalle2-train <nobody@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Trains DALLE2-style image generators")
set(CPACK_PACKAGE_FILE_NAME "dalle2-train-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_STRIP_FILES ON)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/scripts/cmake/package_prefix.cmake)
# What is bundled was built here, so the C library has to be as new as this one.
execute_process(COMMAND getconf GNU_LIBC_VERSION OUTPUT_VARIABLE glibc OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REGEX REPLACE "^glibc " "" glibc "${glibc}")
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= ${glibc}), libstdc++6 (>= ${CMAKE_CXX_COMPILER_VERSION}), libgcc-s1, ca-certificates")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMPRESSION_TYPE gzip)
include(CPack)
