# SPDX-License-Identifier: MIT
# What `cmake --install` and CPack put where: the program, its manual page and completions, example configs and
# schemas, and with DALLE2_BUNDLE the libraries it needs, so that the folder runs wherever it is moved to.
set(libraries_folder ${CMAKE_INSTALL_LIBDIR}/dalle2-train)
file(RELATIVE_PATH libraries_from_program ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/dalle2-train)
if(DALLE2_BUNDLE)
  set_target_properties(dalle2-train PROPERTIES INSTALL_RPATH "$ORIGIN/${libraries_from_program}")
  # DT_RPATH, for the bundled libraries find each other by it; DT_RUNPATH is for the program's own needs alone.
  target_link_options(dalle2-train PRIVATE -Wl,--disable-new-dtags)
  # Of libgomp there may be two, the system's and LibTorch's: the arithmetic needs the latter.
  set(system_libraries "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\\+\\+)\\.so" "^libgomp")
  install(TARGETS dalle2-train RUNTIME_DEPENDENCY_SET needed RUNTIME)
  install(RUNTIME_DEPENDENCY_SET needed DESTINATION ${libraries_folder}
    PRE_EXCLUDE_REGEXES ${system_libraries} DIRECTORIES ${TORCH_DIR}/lib)
  install(FILES ${TORCH_DIR}/lib/libgomp.so.1 DESTINATION ${libraries_folder} OPTIONAL)
else()
  set_target_properties(dalle2-train PROPERTIES INSTALL_RPATH ${TORCH_DIR}/lib)
  install(TARGETS dalle2-train RUNTIME)
endif()

# The program knows its options best, so it writes these itself.
set(pages ${CMAKE_BINARY_DIR}/pages)
add_custom_command(OUTPUT ${pages}/dalle2-train.1
  COMMAND ${CMAKE_COMMAND} -E make_directory ${pages}
  COMMAND dalle2-train man-page > ${pages}/dalle2-train.1
  COMMAND dalle2-train completion bash > ${pages}/dalle2-train
  COMMAND dalle2-train completion zsh > ${pages}/_dalle2-train
  COMMAND dalle2-train completion fish > ${pages}/dalle2-train.fish
  DEPENDS dalle2-train VERBATIM)
add_custom_target(dalle2_pages ALL DEPENDS ${pages}/dalle2-train.1)
install(FILES ${pages}/dalle2-train.1 TYPE MAN RENAME man1/dalle2-train.1)
install(FILES ${pages}/dalle2-train DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${pages}/_dalle2-train DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${pages}/dalle2-train.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/dalle2-train)
install(FILES ${CMAKE_SOURCE_DIR}/README.md ${CMAKE_SOURCE_DIR}/LICENSE TYPE DOC)

set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_NAME dalle2-train)
set(CPACK_PACKAGE_VENDOR "dalle2-train")
set(CPACK_PACKAGE_CONTACT "the authors of dalle2-train <nobody@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Trains DALLE2-style image generators")
set(CPACK_PACKAGE_FILE_NAME "dalle2-train-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.36), libstdc++6 (>= 12), libgcc-s1, ca-certificates")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMPRESSION_TYPE gzip)
include(CPack)
