// SPDX-License-Identifier: MIT
// Whether files could be written at a place, found out without leaving anything behind.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dalle2 {

/// Why no files can be written in `folder`, which need not exist yet: a file in the way, no
/// permission, a read-only file system. It names the place: "'/data' is not writable: Permission
/// denied". None if nothing speaks against it (a full disk shows only in writing).
std::optional<std::string> why_not_writable(const std::string& folder);

/// The same for a file `path` and its folder: a folder in its place is reported too.
std::optional<std::string> why_file_not_writable(const std::string& path);

/// Bytes that the disk of `folder`, which need not exist yet, has left for this user; none: not known.
std::optional<uint64_t> free_disk_bytes(const std::string& folder);

}  // namespace dalle2
