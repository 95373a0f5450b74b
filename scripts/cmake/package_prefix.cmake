# SPDX-License-Identifier: MIT
# CPack reads it for each kind of package: a .deb installs below /usr, an archive is a folder that lies anywhere.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
else()
  set(CPACK_PACKAGING_INSTALL_PREFIX /)
endif()
