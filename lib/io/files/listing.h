// SPDX-License-Identifier: MIT
// What lies in a folder, wherever it is.
#pragma once

#include <string>
#include <vector>

#include "net/http_transfer.h"

namespace dalle2 {

struct ListedFile {
  std::string name;  ///< in the folder
  std::string url;   ///< for open_source()
};

/// The files of a folder in no order: of this machine, of S3 ("s3://bucket/folder"), of a
/// repository of the Hugging Face hub ("hf://owner/name/folder", the urls name the commit of now), or
/// the links of a web page to files in its own folder (a server's index). A query of the page's url is
/// kept for the files.
/// @throws DataError (local), NetworkError, ConfigError (a place that cannot be listed)
std::vector<ListedFile> list_folder(const std::string& folder, const HttpOptions& http = {});

/// The links of a page to files in the folder of `base`, decoded names and urls.
/// @throws NetworkError beyond the limits of net/s3/s3.h
std::vector<ListedFile> links_of_page(const std::string& html, const std::string& base);

}  // namespace dalle2
